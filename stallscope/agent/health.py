# SPDX-License-Identifier: Apache-2.0
"""Which collectors fail, and why."""

from __future__ import annotations

import logging

from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.uncaching import FILES, FREED
from stallscope.model.samples import Sample

__all__ = ["CollectorHealth"]

_log = logging.getLogger(__name__)


class CollectorHealth:
    """Counts samples and failures; logs once that a collector fails, and that it works again."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics
        self._why: dict[str, str] = {}
        """Collector → why it fails."""
        self._logged: set[str] = set()
        """Those of them that were logged."""

    @property
    def failing(self) -> frozenset[str]:
        """The collectors that fail."""
        return frozenset(self._why)

    @property
    def reasons(self) -> dict[str, str]:
        """The collectors that fail, and why."""
        return dict(self._why)

    def note(self, sample: Sample) -> None:
        """Take a sample.

        Where several fail for the same reason, such as a refused password, it is logged once.
        """
        source, error = sample.source, sample.error
        if error is None:
            self._metrics.samples[source] += 1
            if source == _PROCESS:
                self._metrics.written = sample.values.get(_WRITTEN)
            self._metrics.uncached_bytes += sample.values.get(FREED, 0.0)
            self._metrics.uncached_files += sample.values.get(FILES, 0.0)
            self._why.pop(source, None)
            if source in self._logged:
                self._logged.remove(source)
                _log.info("%s: works again", source)
            return
        self._metrics.errors[source] += 1
        known = source in self._why or _cause(error) in map(_cause, self._why.values())
        if not known:
            self._logged.add(source)
            _log.warning("%s: %s", source, error)
        self._why[source] = error


_PROCESS = "process"
_WRITTEN = "process.write_bytes"


def _cause(error: str) -> str:
    """Return why a collector failed, without when it is tried again."""
    return error.partition("; tried again in ")[0]

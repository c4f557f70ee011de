# SPDX-License-Identifier: Apache-2.0
"""The file of metrics that commands keep for the node exporter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors.processes import Server
from stallscope.collectors.serverlabels import labels_of
from stallscope.model.waitlines import WaitLine
from stallscope.reporters.exposition import MetricsPage
from stallscope.reporters.prometheus import Metrics

__all__ = ["MetricsFile", "WaitsFile", "notice"]

_METRICS_BEGIN = b"# HELP stallscope_"
_METRICS_MODE = 0o644
"""Readable for all, since the node exporter is another user: it has no SQL, and no path but the
data directory."""


def notice(text: str) -> None:
    """Print a line on stderr."""
    print(f"stallscope: {one_line(text)}", file=sys.stderr, flush=True)


class MetricsFile:
    """A file that is replaced each time.

    Raises: StallscopeError where the path holds anything else.
    """

    def __init__(self, path: Path, page: MetricsPage, warn: Callable[[str], None] = notice) -> None:
        self._path = path
        self._warn = warn
        self._page = page
        self.failed = False
        """Whether a write has failed and was reported."""
        atomicfile.check_can_create(path, force=True)
        if path.exists() and not _begins_with(path, _METRICS_BEGIN):
            raise StallscopeError(
                f"{path} exists and does not contain stallscope metrics: name another file"
            )
        if path.suffix != ".prom":
            warn(f"{path}: the node exporter reads only files whose names end in .prom")

    def write(self) -> None:
        """Write the file again."""
        try:
            # Not synced: that would wait for the disk whose stall is watched.
            atomicfile.write(
                self._path, [self._page.text()], force=True, mode=_METRICS_MODE, sync=False
            )
        except StallscopeError as error:
            if not self.failed:
                self._warn(f"{error}; continuing without it")
            self.failed = True


class WaitsFile:
    """A file of the waits of some servers, which is replaced with each line."""

    def __init__(self, path: Path, servers: Sequence[Server]) -> None:
        self._page = MetricsPage()
        self._metrics = Metrics(labels_of(servers))
        self._file = MetricsFile(path, self._page)

    @property
    def failed(self) -> bool:
        """Whether a write has failed and was reported."""
        return self._file.failed

    def show(self, line: WaitLine, data: bytes) -> None:
        """Count a line, and write the file."""
        self._metrics.count(line)
        self._page.put(self, self._metrics.families())
        self._file.write()


def _begins_with(path: Path, text: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(text)) == text

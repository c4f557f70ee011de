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
from stallscope.model.waitlines import WaitLine
from stallscope.reporters.prometheus import Metrics

__all__ = ["MetricsFile", "notice"]

_METRICS_BEGIN = b"# HELP stallscope_"
_METRICS_MODE = 0o644
"""Readable for all, since the node exporter is another user: it has no SQL, and no path but the
data directory."""


def notice(text: str) -> None:
    """Print a line on stderr."""
    print(f"stallscope: {one_line(text)}", file=sys.stderr, flush=True)


class MetricsFile:
    """A file that is replaced with each line.

    Raises: StallscopeError where the path holds anything else.
    """

    def __init__(
        self, path: Path, servers: Sequence[Server], warn: Callable[[str], None] = notice
    ) -> None:
        self._path = path
        self._warn = warn
        self._metrics = Metrics(_labels(servers))
        self.failed = False
        """Whether a write has failed and was reported."""
        atomicfile.check_can_create(path, force=True)
        if path.exists() and not _begins_with(path, _METRICS_BEGIN):
            raise StallscopeError(
                f"{path} exists and does not contain stallscope metrics: name another file"
            )
        if path.suffix != ".prom":
            warn(f"{path}: the node exporter reads only files whose names end in .prom")

    def show(self, line: WaitLine, data: bytes) -> None:
        """Count a line, and write the file."""
        self.count(line)
        self.write()

    def count(self, line: WaitLine) -> None:
        """Count a line."""
        if line.final:
            self._metrics.finish(line)
        else:
            self._metrics.add(line)

    def write(self, more: bytes = b"") -> None:
        """Write the file again, with ``more`` metrics at its end."""
        try:
            # Not synced: that would wait for the disk whose stall is watched.
            atomicfile.write(
                self._path, [self._metrics.text(), more], force=True, mode=_METRICS_MODE, sync=False
            )
        except StallscopeError as error:
            if not self.failed:
                self._warn(f"{error}; continuing without it")
            self.failed = True


def _labels(servers: Sequence[Server]) -> dict[str, str]:
    """Return labels that identify these servers on this host; a restart does not change them."""
    labels = {"server": ",".join(dict.fromkeys(server.name for server in servers))}
    datadirs = [server.datadir for server in servers if server.datadir]
    return {**labels, "datadir": ",".join(datadirs)} if datadirs else labels


def _begins_with(path: Path, text: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(text)) == text

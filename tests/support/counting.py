# SPDX-License-Identifier: Apache-2.0
"""Count what a process writes, while the test makes it write."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Iterator
from typing import Self

from stallscope.collectors.probestream import Stream
from stallscope.collectors.storage import Options, arguments
from stallscope.model import storage
from stallscope.model.storage import FileSums, StorageLine
from tests.support.servers import PATIENCE

__all__ = ["Counting", "file_of"]


class Counting:
    """``stallscope-probe storage``; from ``__enter__`` on all is counted."""

    def __init__(self, *pids: int, interval: float | None = None) -> None:
        self._stream = Stream(
            arguments(pids, Options(interval=interval)), max_line=storage.MAX_LINE
        )
        self._lines = self._stream.lines(PATIENCE, lambda: math.inf)
        self._first = len(pids)

    def __enter__(self) -> Self:
        self._stream.__enter__()
        try:
            for _ in range(self._first):
                line = self.line()
                assert not line.final
                assert not line.files
        except BaseException:
            self._stream.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__(None, None, None)

    def line(self) -> StorageLine:
        """Return the next line."""
        return storage.loads(next(self._lines), "probe", 1)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it read nothing meanwhile; the kernel counts."""
        os.kill(self._stream.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._stream.pid, signal.SIGCONT)

    def rest(self) -> list[StorageLine]:
        """Return the lines until it ends by itself."""
        return [storage.loads(data, "probe", 1) for data in self._lines]

    def finish(self) -> StorageLine:
        """End it, and return the final line, which is the last."""
        self._stream.end()
        *_, last = self.rest()
        assert last.final
        return last


def file_of(line: StorageLine, name: str) -> FileSums:
    """Return the one file whose path ends in this name."""
    (found,) = [one for one in line.files if one.path and one.path.rsplit("/", 1)[-1] == name]
    return found

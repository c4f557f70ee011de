# SPDX-License-Identifier: Apache-2.0
"""Today's ClickHouse for tests: chDB in a child process, which is asked as any server is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from stallscope.fleet.address import Address, parse
from stallscope.fleet.batch import Batch
from stallscope.fleet.engines.clickhouse import ClickHouse, ClickHouseDestination
from stallscope.fleet.engines.clickhousetables import init
from tests.support.cache import why_missing

__all__ = ["ChdbServer", "chdb_missing", "loaded"]


def chdb_missing() -> str | None:
    """Return why there is none here, or None."""
    return None if find_spec("chdb") else f"no module chdb here: {why_missing('chdb')}"


class ChdbServer:
    """A context manager: a child process with an engine on ``folder``, without tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        """Return its address."""
        return parse(self.url)

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.fleet.chdbserver", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[3],
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "PATH": "/usr/bin:/bin"},
        )
        assert self._child.stdout is not None
        port = self._child.stdout.readline().decode().strip()
        if not port:
            self.__exit__()
            raise AssertionError("chDB did not start")
        self.url = f"clickhouse+http://127.0.0.1:{port}/stallscope"
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            assert self._child.stdin is not None
            assert self._child.stdout is not None
            # Not asked to end: the library then flushes and merges for seconds.
            self._child.kill()
            self._child.wait()
            self._child.stdin.close()
            self._child.stdout.close()
            self._child = None


def loaded(server: ChdbServer, batches: Iterable[Batch]) -> ClickHouse:
    """Make the tables, insert the batches, and return the engine that answers."""
    init([server.address])
    destination = ClickHouseDestination(server.address)
    for batch in batches:
        destination.send(batch)
    return ClickHouse(server.address)

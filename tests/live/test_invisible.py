# SPDX-License-Identifier: Apache-2.0
"""stallscope is not in its own output: neither its connections nor what they make the server do, and
all that others make it do is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from stallscope.collectors.ownthreads import Ignoring
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.sessions import fetch
from stallscope.model.waitlines import Notice, WaitLine
from tests.support.servers import PATIENCE, SqlServer, wait_until
from tests.support.watching import Waits

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

ASKED = 20
LISTS = (
    "SELECT * FROM information_schema.PROCESSLIST",
    "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'mysql'",
    "SHOW GLOBAL STATUS",
    "SHOW ENGINE INNODB STATUS",
)
"""Statements for which old servers make temporary tables on the disk."""
TEMPORARY = (
    "CREATE TEMPORARY TABLE made.others ENGINE=MyISAM SELECT 1 AS a",
    "DROP TEMPORARY TABLE made.others",
)


def ask_much(session: SqlSession) -> None:
    for statement in LISTS:
        session.select(statement)


class Reading:
    """A probe, all of whose waits are events, that ignores our connections' threads."""

    def __init__(self, watch: Waits, server: SqlServer) -> None:
        self.watch = watch
        self._ignoring = Ignoring(watch.say)
        self._ignoring.begin((server.pid,))

    @property
    def tids(self) -> frozenset[int]:
        return self._ignoring.tids

    def line(self) -> WaitLine:
        """Return the next line."""
        while True:
            self._ignoring.tick()
            said = self.watch.read()
            assert said is not None
            if isinstance(said, WaitLine):
                return said
            assert self._ignoring.answered(said), said

    def lines_until(self, done: threading.Event) -> list[WaitLine]:
        lines = []
        while not done.is_set():
            lines.append(self.line())
        return [*lines, self.line()]

    def close(self) -> None:
        self._ignoring.close()


@contextmanager
def reading(server: SqlServer) -> Iterator[Reading]:
    options = ("--interval", "100", "--threshold", "0", "--events", "--top", "1000")
    with Waits(*options, pids=(server.pid,)) as watch, closing(Reading(watch, server)) as found:
        yield found
        watch.say("quit")
        while watch.read():
            continue


@contextmanager
def working(work: list[object]) -> Iterator[threading.Event]:
    done = threading.Event()

    def run() -> None:
        try:
            for call in work:
                assert callable(call)
                call()
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield done
    thread.join()


def test_no_wait_is_of_our_connection(server: SqlServer) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS made")
    with (
        closing(Connection(Login(user="root", socket=str(server.socket)))) as connection,
        reading(server) as probe,
    ):
        connection.open(PATIENCE)
        wait_until(lambda: probe.line() and probe.tids, "our thread is known")
        (ours,) = probe.tids
        with working([lambda: connection.ask(ask_much, PATIENCE)] * ASKED) as done:
            lines = probe.lines_until(done)
        print(len(lines), {k.name: k.count for l in lines for k in l.keys if k.count})
        assert ours not in {event.tid for line in lines for event in line.events}
        named = {key.name for line in lines for key in line.keys if key.count and key.name}
        assert not [name for name in named if "#sql" in name]

        with working([lambda: server.execute(*TEMPORARY)] * 3) as done:
            lines = probe.lines_until(done)
        named = {key.name for line in lines for key in line.keys if key.count and key.name}
        assert [name for name in named if "#sql" in name]

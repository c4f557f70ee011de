# SPDX-License-Identifier: Apache-2.0
"""What it costs MySQL 9.7 to say who waits for whom, where many transactions are open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from stallscope.collectors.sql import lock_waits
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import SqlSession
from tests.bench import progress
from tests.bench.asking import ask_ms, median_of
from tests.bench.stats import Figure, Row, Section, figure
from tests.support.servers import PATIENCE, MySQL97, SqlServer, wait_until
from tests.support.servers.clients import idle_connections, running_statements

__all__ = ["section"]

OPEN = 500
ROWS = 20
"""Locks of each open transaction."""
GOAL_MS = 200.0
"""The agent's deadline for all that it asks for a capture is a second."""
TURNS = 20
LOOKUP_TURNS = 3


class Scene(NamedTuple):
    """How many wait, and for how many rows of other transactions."""

    waiters: int
    rows: int


SCENES = (Scene(10, 10), Scene(100, 10), Scene(100, 1), Scene(400, 1), Scene(400, 40))
QUICK = SCENES[:2]


def section(quick: bool) -> Section:
    """Measure the collector, its parts, and one lookup for each open transaction."""
    rows = []
    with MySQL97("--innodb-flush-method=nosync") as server, _open_transactions(server):
        for scene in QUICK if quick else SCENES:
            progress(f"{scene.waiters} waiters of {scene.rows} rows")
            with _waiting(server, scene):
                rows.append(_measured(server, scene))
    slowest = max(median_of(row, "all of a capture") for row in rows)
    return Section(
        "lock-waits",
        f"Who waits for whom on MySQL 9.7 with {OPEN} open transactions",
        tuple(rows),
        checks=("each answer has every waiter, and every transaction that one waits for",),
        goals=(
            (
                f"at most {GOAL_MS:g} ms for a capture, measured {slowest:.0f} ms",
                slowest <= GOAL_MS,
            ),
        ),
    )


@contextmanager
def _open_transactions(server: SqlServer) -> Iterator[None]:
    """Hold transactions that locked ROWS rows each."""
    count = OPEN * ROWS
    digits = (
        "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5"
    )
    digits += " UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
    server.execute(
        "SET GLOBAL innodb_lock_wait_timeout = 3600",
        "CREATE DATABASE locks_",
        "CREATE TABLE locks_.t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO locks_.t SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d, 0"
        f" FROM {digits} a, {digits} b, {digits} c, {digits} e"
        f" WHERE a.d + 10 * b.d + 100 * c.d + 1000 * e.d < {count}",
    )
    with idle_connections(server, OPEN) as connections:
        for number, connection in enumerate(connections):
            connection.select_db("locks_")
            first = number * ROWS
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute(
                    f"UPDATE t SET v = 1 WHERE id BETWEEN {first} AND {first + ROWS - 1}"
                )
        yield


@contextmanager
def _waiting(server: SqlServer, scene: Scene) -> Iterator[None]:
    updates = [
        f"UPDATE t SET v = 2 WHERE id = {number % scene.rows * ROWS}"
        for number in range(scene.waiters)
    ]
    waiting = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
    wait_until(lambda: server.number(waiting) == 0, "the waiters of before are gone")
    with running_statements(server, "locks_", updates):
        wait_until(lambda: server.number(waiting) == scene.waiters, "all wait")
        yield


def _measured(server: SqlServer, scene: Scene) -> Row:
    with ExitStack() as stack:
        login = Login(user="root", socket=str(server.socket))
        connection = stack.enter_context(closing(Connection(login)))

        def times(ask: Callable[[SqlSession], object], turns: int) -> Figure:
            return figure([ask_ms(connection, ask) for _ in range(turns)], "ms")

        found = connection.ask(lock_waits.read_row_locks, PATIENCE)
        owners = {wait.owner for wait in found.waits}
        assert len(found.waits) == scene.waiters, len(found.waits)
        assert len(owners) == scene.rows, owners
        roots = _roots(connection)
        cells: dict[str, Figure | str] = {
            "transactions": times(lambda s: s.select(lock_waits.TRANSACTIONS), TURNS),
            "all of a capture": times(lock_waits.read_row_locks, TURNS),
            "each transaction looked up": times(lambda s: _look_up(s, roots), LOOKUP_TURNS),
        }
    return Row(f"{scene.waiters} waiters of {scene.rows} rows", cells)


def _roots(connection: Connection) -> list[int]:
    rows = connection.ask(lambda s: s.select(lock_waits.TRANSACTIONS), PATIENCE)
    return [int(row[0]) for row in rows if row[1] != "LOCK WAIT"]


def _look_up(session: SqlSession, ids: Sequence[int]) -> None:
    """Ask as for a few transactions, for all of them."""
    places = ", ".join(["%s"] * len(ids))
    session.select(lock_waits.DATA_LOCK_WAITS.format(lock_waits.BLOCKING, places), ids)

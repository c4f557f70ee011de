# SPDX-License-Identifier: Apache-2.0
"""What it costs a PostgreSQL to say who waits for whom, and what the child that asks it needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from stallscope.collectors import processes
from stallscope.collectors.sql import postgres_login, postgres_sessions
from stallscope.collectors.sql.postgres_backends import read_backends
from stallscope.collectors.sql.postgres_session import PostgresConnection, PostgresSession
from tests.bench import progress
from tests.bench.asking import ask_ms, median_of
from tests.bench.stats import Figure, Row, Section, figure
from tests.support.servers import PATIENCE, Postgres, Postgres17
from tests.support.stalls.postgres_locks import row_lock
from tests.support.usage import pss_mb

__all__ = ["section"]

WAITERS = (20, 80, 200)
QUICK = (20,)
GOAL_MS = 200.0
"""The agent's deadline for all that it asks for a capture is a second."""
TURNS = 30
LOGINS = 5


def section(quick: bool) -> Section:
    """Measure the questions of a poll and of a capture, and a login."""
    rows = []
    for kind in (Postgres, Postgres17):
        for waiters in QUICK if quick else WAITERS:
            progress(f"{kind.name}, {waiters} waiters of one row")
            with kind("max_connections=300") as server, row_lock(server, waiters):
                rows.append(_measured(server, waiters))
    slowest = max(median_of(row, "all of a capture") for row in rows)
    return Section(
        "postgres",
        "Who waits for whom on PostgreSQL",
        tuple(rows),
        checks=("each answer has every waiter",),
        goals=(
            (
                f"at most {GOAL_MS:g} ms for a capture, measured {slowest:.0f} ms",
                slowest <= GOAL_MS,
            ),
        ),
    )


def _measured(server: Postgres, waiters: int) -> Row:
    _, (found,) = processes.resolve([str(server.pid)], processes.Selector())
    login, _ = postgres_login.find(found, environment={})
    logins = []
    for _ in range(LOGINS):
        begun = time.perf_counter()
        with closing(PostgresConnection(login)) as connection:
            connection.open(PATIENCE)
            logins.append((time.perf_counter() - begun) * 1e3)
    with closing(PostgresConnection(login)) as connection:

        def times(ask: Callable[[PostgresSession], object]) -> Figure:
            return figure([ask_ms(connection, ask) for _ in range(TURNS)], "ms")

        known = postgres_sessions.fetch(connection, PATIENCE)
        assert len(known.waits) == waiters, (known.reason, known.notes)
        cells: dict[str, Figure | str] = {
            "login": figure(logins, "ms"),
            "poll": times(read_backends),
            "sessions": times(postgres_sessions.read_sessions),
            "all of a capture": times(lambda s: postgres_sessions._fetch(s, [])),
            "memory of the child": figure([_pss(connection)], "MB"),
        }
    return Row(f"{server.name} {server.version()}, {waiters} waiters of one row", cells)


def _pss(connection: PostgresConnection) -> float:
    """Return the memory of the child, its share of what it shares."""
    pid = connection.ask(lambda session: session._link._process.pid, PATIENCE)
    return pss_mb([pid])

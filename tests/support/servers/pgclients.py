# SPDX-License-Identifier: Apache-2.0
"""Connections that do something to a PostgreSQL until they are asked to stop."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.cache import MEMORY
from tests.support.servers.child import Child
from tests.support.servers.postgres import ASKING, Postgres
from tests.support.servers.waiting import wait_until

__all__ = ["bench", "idle_transactions", "lock_waits", "root_blockers", "sessions_in"]

# Its output is a session that is idle for as long as psql waits for this.
HOLD = r"\! exec setpriv --pdeathsig KILL sleep infinity"

HELD = "SELECT pid FROM pg_stat_activity WHERE state = '{state}' AND query = $last${last}$last$"
LOCK_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
ROOT_BLOCKERS = (
    "WITH waits AS (SELECT pid, unnest(pg_blocking_pids(pid)) AS blocker FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock')"
    " SELECT DISTINCT blocker FROM waits WHERE blocker NOT IN (SELECT pid FROM waits)"
)


def sessions_in(server: Postgres, condition: str) -> int:
    """Return how many sessions of clients have a row in pg_stat_activity with ``condition``."""
    return server.number(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        f" AND application_name <> '{ASKING}' AND ({condition})"
    )


def lock_waits(server: Postgres) -> int:
    """Return how many sessions wait for a lock of a table, row or transaction."""
    return server.number(LOCK_WAITS)


def root_blockers(server: Postgres) -> frozenset[int]:
    """Return the pids that block others and are not blocked, by pg_blocking_pids."""
    return frozenset(int(line) for line in server.query(ROOT_BLOCKERS).split())


@contextmanager
def idle_transactions(
    server: Postgres, *scripts: Sequence[str], state: str = "idle in transaction"
) -> Iterator[tuple[int, ...]]:
    """Run each list of statements on a connection that then sits idle; yield their pids."""
    before = set(server.backends())

    def held() -> set[int]:
        # By its last statement: it is in this state between two of them, too.
        return {
            int(pid)
            for statements in scripts
            for pid in server.query(HELD.format(state=state, last=statements[-1])).split()
        } - before

    with ExitStack() as stack:
        stack.callback(_end_others, server, before)
        for statements in scripts:
            command = [*server.psql(statements[0])]
            for statement in (*statements[1:], HOLD):
                command += ["-c", statement]
            stack.callback(Child(command, server.folder / "clients.log").end)
        wait_until(lambda: len(held()) == len(scripts), f"{len(scripts)} are {state}")
        yield tuple(held())


@contextmanager
def bench(
    server: Postgres,
    script: str,
    clients: int,
    there: Callable[[], bool],
    what: str,
    *options: str,
    undo: Callable[[], object] = lambda: None,
) -> Iterator[Child]:
    """Run a script of pgbench on as many connections; yield it when ``there`` is true.

    ``undo`` ends what else the sessions would wait for when they are to end.
    """
    before = set(server.backends())
    home = Path(tempfile.mkdtemp(prefix="stallscope-pgbench-", dir=MEMORY))
    file = home / "script.sql"
    file.write_text(script)
    command = [
        *(
            str(server.program("pgbench")),
            "--no-vacuum",
            "-h",
            str(server.folder),
            "-U",
            "postgres",
        ),
        *(f"--client={clients}", f"--file={file}", "--time=100000", *options, "postgres"),
    ]
    child = Child(command, home / "log")
    try:
        child.wait_until(there, what)
        yield child
    finally:
        undo()
        child.end()
        shutil.rmtree(home, ignore_errors=True)
        _end_others(server, before)


def _end_others(server: Postgres, before: set[int]) -> None:
    """End all sessions but those of ``before``: one that waits would not see its client go."""

    def gone() -> bool:
        others = set(server.backends()) - before
        for pid in others:
            server.query(f"SELECT pg_terminate_backend({pid})")
        return not others

    wait_until(gone, "sessions that were closed are gone")

# SPDX-License-Identifier: Apache-2.0
"""Waits for PostgreSQL's heavyweight locks, and the same load without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from tests.support.servers.pgclients import (
    bench,
    idle_transactions,
    lock_waits,
    root_blockers,
    sessions_in,
)
from tests.support.servers.postgres import Postgres

__all__ = ["relation_lock", "relation_lock_fixed", "row_lock", "row_lock_fixed"]

ROWS = 10_000
UPDATE = "UPDATE account SET balance = balance + 1 WHERE id = {id};"
RANDOM_UPDATE = f"\\set id random(1, {ROWS})\n" + UPDATE.format(id=":id")
SELECT = "SELECT count(*) FROM account WHERE id < 10;"
ALTER = "ALTER TABLE account ADD COLUMN note int;"
IDLE = 5
"""Connections that do nothing, beside the one that holds the lock."""
SLOW = "--rate=100"
"""Transactions a second of a load that leaves the CPUs mostly idle."""


def _make_accounts(server: Postgres) -> None:
    server.execute(
        "DROP TABLE IF EXISTS account",
        "CREATE TABLE account (id int PRIMARY KEY, balance int)",
        f"INSERT INTO account SELECT id, 0 FROM generate_series(1, {ROWS}) AS id",
        "VACUUM ANALYZE account",
    )


@contextmanager
def row_lock(server: Postgres, waiters: int = 20) -> Iterator[int]:
    """Let connections wait for a row of an idle transaction; yield the pid of its backend."""
    _make_accounts(server)
    update = UPDATE.format(id=1)
    with (
        idle_transactions(server, ["BEGIN", update]) as (holder,),
        bench(
            server, update, waiters, lambda: lock_waits(server) == waiters, "they wait for the row"
        ),
    ):
        assert root_blockers(server) == {holder}
        yield holder


@contextmanager
def row_lock_fixed(server: Postgres, clients: int = 20) -> Iterator[None]:
    """Update rows at random in short transactions from as many connections."""
    _make_accounts(server)
    with idle_transactions(server, ["SELECT 1"], state="idle"), running(server, clients):
        yield


@contextmanager
def relation_lock(
    server: Postgres, waiters: int = 20, *, long_select: bool = False
) -> Iterator[int]:
    """Let SELECTs queue behind an ALTER TABLE that waits; yield the pid that it waits for.

    That is an idle transaction, or one that runs a SELECT that takes long; others are idle.
    """
    _make_accounts(server)
    others = [["SELECT 1"]] * IDLE
    with (
        idle_transactions(server, *others, state="idle"),
        holding(server, long_select) as holder,
        bench(server, ALTER, 1, lambda: lock_waits(server) == 1, "the ALTER TABLE waits"),
        bench(
            server,
            SELECT,
            waiters,
            lambda: lock_waits(server) == waiters + 1,
            "the SELECTs wait behind it",
        ),
    ):
        assert root_blockers(server) == {holder}
        yield holder


@contextmanager
def holding(server: Postgres, long_select: bool) -> Iterator[int]:
    """Hold the table's lock of readers; yield the pid of the backend."""
    if not long_select:
        with idle_transactions(server, ["BEGIN", SELECT]) as (holder,):
            yield holder
        return
    with selecting_long(server, "account") as holder:
        yield holder


@contextmanager
def selecting_long(server: Postgres, table: str) -> Iterator[int]:
    """Run a SELECT that computes for longer than anyone waits; yield the pid of the backend."""
    script = f"SELECT count(*) FROM {table} a, {table} b, {table} c;"
    running_it = f"state = 'active' AND query LIKE '%{table} c;'"
    with bench(server, script, 1, lambda: sessions_in(server, running_it) == 1, "a SELECT runs"):
        pid = f"SELECT pid FROM pg_stat_activity WHERE {running_it} AND pid <> pg_backend_pid()"
        yield server.number(pid)


@contextmanager
def relation_lock_fixed(
    server: Postgres, clients: int = 20, *, long_select: bool = False
) -> Iterator[None]:
    """Run the SELECTs and short ALTER TABLEs, without a transaction that stays open.

    A SELECT that takes long reads a table of its own.
    """
    _make_accounts(server)
    server.execute("CREATE TABLE ledger AS TABLE account")
    alter = "ALTER TABLE account ADD COLUMN IF NOT EXISTS note int;\n\\sleep 200 ms\n"
    alter += "ALTER TABLE account DROP COLUMN IF EXISTS note;\n\\sleep 200 ms\n"
    others = [["SELECT 1"]] * IDLE
    altering = "query LIKE 'ALTER TABLE%'"
    with (
        idle_transactions(server, *others, state="idle"),
        selecting_long(server, "ledger") if long_select else nullcontext(),
        bench(server, alter, 1, lambda: sessions_in(server, altering) == 1, "an ALTER TABLE runs"),
        running(server, clients, SELECT),
    ):
        yield


@contextmanager
def running(server: Postgres, clients: int, script: str = RANDOM_UPDATE) -> Iterator[None]:
    """Run short transactions on as many connections, a hundred of them a second in all."""
    done = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'"
    before = server.number(done)
    with bench(
        server,
        script,
        clients,
        lambda: server.number(done) > before + 5 * clients,
        "they run",
        SLOW,
    ):
        yield

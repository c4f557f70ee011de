# SPDX-License-Identifier: Apache-2.0
"""Stalls of PostgreSQL, MyRocks and Aria, and their fixed twins."""

from __future__ import annotations

from tests.support.servers import Postgres, Postgres17
from tests.support.stalls.postgres_locks import (
    relation_lock,
    relation_lock_fixed,
    row_lock,
    row_lock_fixed,
)
from tests.support.stalls.stall import Expected, NamedStall, Stall

__all__ = ["STALLS"]

HEAVYWEIGHT = Expected(("postgres-heavyweight-lock",))

STALLS: dict[str, NamedStall] = {
    "row-lock-postgres": Stall(
        Postgres,
        row_lock,
        "20 connections wait for a row that an idle transaction updated, in PostgreSQL",
        HEAVYWEIGHT,
    ),
    "row-lock-postgres-fixed": Stall(
        Postgres,
        row_lock_fixed,
        "no stall: 20 connections update rows at random in short transactions",
    ),
    "row-lock-postgres17": Stall(
        Postgres17,
        row_lock,
        "20 connections wait for a row that an idle transaction updated, in PostgreSQL 17",
        HEAVYWEIGHT,
    ),
    "row-lock-postgres17-fixed": Stall(
        Postgres17,
        row_lock_fixed,
        "no stall: 20 connections update rows at random in short transactions",
    ),
    "relation-lock-postgres": Stall(
        Postgres,
        relation_lock,
        "20 SELECTs queue behind an ALTER TABLE, which waits for a transaction that sits idle;"
        " 5 more connections are idle",
        HEAVYWEIGHT,
    ),
    "relation-lock-select-postgres": Stall(
        Postgres,
        lambda server: relation_lock(server, long_select=True),
        "20 SELECTs queue behind an ALTER TABLE, which waits for a SELECT that takes long;"
        " 5 more connections are idle",
        HEAVYWEIGHT,
    ),
    "relation-lock-select-postgres-fixed": Stall(
        Postgres,
        lambda server: relation_lock_fixed(server, long_select=True),
        "no stall: the same, and the SELECT that takes long reads a table of its own",
    ),
    "relation-lock-postgres-fixed": Stall(
        Postgres,
        relation_lock_fixed,
        "no stall: 20 connections run the SELECTs, another one an ALTER TABLE five times a second",
    ),
    "relation-lock-postgres17": Stall(
        Postgres17,
        relation_lock,
        "20 SELECTs queue behind an ALTER TABLE, which waits for a transaction that sits idle;"
        " 5 more connections are idle",
        HEAVYWEIGHT,
    ),
    "relation-lock-postgres17-fixed": Stall(
        Postgres17,
        relation_lock_fixed,
        "no stall: 20 connections run the SELECTs, another one an ALTER TABLE five times a second",
    ),
}

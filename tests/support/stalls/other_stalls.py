# SPDX-License-Identifier: Apache-2.0
"""Stalls of PostgreSQL, MyRocks and Aria, and their fixed twins."""

from __future__ import annotations

from tests.support.servers import MEMORY, MariaDB114, MyRocks, Postgres, Postgres17
from tests.support.stalls.aria import aria_log_sync, aria_log_sync_fixed
from tests.support.stalls.myrocks import (
    WRITE_STALL_OPTIONS,
    myrocks_row_lock,
    myrocks_row_lock_fixed,
    write_stall,
    write_stall_fixed,
)
from tests.support.stalls.postgres_disk import (
    WAL_SYNC_SETTINGS,
    relation_extend,
    relation_extend_fixed,
    relation_extend_page,
    wal_sync,
    wal_sync_fixed,
)
from tests.support.stalls.postgres_locks import (
    relation_lock,
    relation_lock_fixed,
    row_lock,
    row_lock_fixed,
)
from tests.support.stalls.postgres_snapshots import (
    SNAPSHOT_SETTINGS,
    snapshots,
    snapshots_fixed,
)
from tests.support.stalls.stall import DiskStall, Expected, NamedStall, Stall

__all__ = ["STALLS"]

HEAVYWEIGHT = Expected(("postgres-heavyweight-lock",))
WAL_SYNC = Expected(("postgres-wal-sync",), ("XLogFlush", "XLogBackgroundFlush"))
PROCARRAY = Expected(("postgres-procarray",), ("GetSnapshotData", "ProcArrayEndTransaction"))
EXTEND = Expected(("postgres-extend",), ("mdextend", "mdzeroextend"))

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
    "wal-sync-postgres": DiskStall(
        lambda folder: Postgres(*WAL_SYNC_SETTINGS, device=folder, wal_there=True),
        wal_sync,
        "20 commits wait for the log on a disk that does not answer, in PostgreSQL",
        WAL_SYNC,
    ),
    "wal-sync-postgres-fixed": Stall(
        lambda: Postgres(*WAL_SYNC_SETTINGS, parent=MEMORY),
        wal_sync_fixed,
        "no stall: 20 connections commit, and the log is on a quick disk",
    ),
    "wal-sync-postgres17": DiskStall(
        lambda folder: Postgres17(*WAL_SYNC_SETTINGS, device=folder, wal_there=True),
        wal_sync,
        "20 commits wait for the log on a disk that does not answer, in PostgreSQL 17",
        WAL_SYNC,
    ),
    "wal-sync-postgres17-fixed": Stall(
        lambda: Postgres17(*WAL_SYNC_SETTINGS, parent=MEMORY),
        wal_sync_fixed,
        "no stall: 20 connections commit, and the log is on a quick disk",
    ),
    "relation-extend-postgres": DiskStall(
        lambda folder: Postgres(device=folder),
        relation_extend,
        "20 connections insert into a table whose file system is frozen, in PostgreSQL",
        EXTEND,
    ),
    "relation-extend-postgres-fixed": Stall(
        lambda: Postgres(parent=MEMORY),
        relation_extend_fixed,
        "no stall: 20 connections insert a hundred large rows a second, on a quick disk",
    ),
    "relation-extend-postgres17": DiskStall(
        lambda folder: Postgres17(device=folder),
        relation_extend,
        "20 connections insert into a table whose file system is frozen, in PostgreSQL 17",
        EXTEND,
    ),
    "relation-extend-postgres17-fixed": Stall(
        lambda: Postgres17(parent=MEMORY),
        relation_extend_fixed,
        "no stall: 20 connections insert a hundred large rows a second, on a quick disk",
    ),
    "relation-extend-page-postgres": DiskStall(
        lambda folder: Postgres(device=folder),
        relation_extend_page,
        "20 connections insert into a table, and its new page is not written, in PostgreSQL",
        EXTEND,
    ),
    "relation-extend-page-postgres17": DiskStall(
        lambda folder: Postgres17(device=folder),
        relation_extend_page,
        "20 connections insert into a table, and its new page is not written, in PostgreSQL 17",
        EXTEND,
    ),
    "row-lock-myrocks": Stall(
        MyRocks,
        myrocks_row_lock,
        "20 connections wait for a row that an idle transaction locked, in MyRocks",
        Expected(("rocksdb-row-lock",)),
    ),
    "row-lock-myrocks-fixed": Stall(
        MyRocks,
        myrocks_row_lock_fixed,
        "no stall: a pool of 2 connections updates a row, and the idle transaction locks another",
    ),
    "rocksdb-write-stall": DiskStall(
        lambda folder: MyRocks(*WRITE_STALL_OPTIONS, device=folder),
        write_stall,
        "20 connections insert while a full memtable cannot be written to a frozen disk",
        Expected(("rocksdb-write-stall",), ("DelayWrite", "FlushJob")),
    ),
    "rocksdb-write-stall-fixed": Stall(
        lambda: MyRocks(*WRITE_STALL_OPTIONS, parent=MEMORY),
        write_stall_fixed,
        "no stall: a pool of 2 connections inserts small rows, on a quick disk",
    ),
    "aria-log-sync": DiskStall(
        lambda folder: MariaDB114(parent=folder),
        aria_log_sync,
        "20 INSERTs into tables of Aria wait for its log on a disk that does not answer",
        Expected(("aria-log-sync",), ("translog_flush", "translog_sync_files")),
    ),
    "aria-log-sync-fixed": Stall(
        lambda: MariaDB114(parent=MEMORY),
        aria_log_sync_fixed,
        "no stall: a pool of 2 connections inserts, and the log is on a quick disk",
    ),
    "procarray-postgres": Stall(
        lambda: Postgres(*SNAPSHOT_SETTINGS, parent=MEMORY),
        snapshots,
        "40 connections start and end transactions, and 64 stay open, in PostgreSQL",
        PROCARRAY,
    ),
    "procarray-postgres-fixed": Stall(
        lambda: Postgres(*SNAPSHOT_SETTINGS, parent=MEMORY),
        snapshots_fixed,
        "no stall: 4 connections run a hundred transactions a second, and none stays open",
    ),
    "procarray-postgres17": Stall(
        lambda: Postgres17(*SNAPSHOT_SETTINGS, parent=MEMORY),
        snapshots,
        "40 connections start and end transactions, and 64 stay open, in PostgreSQL 17",
        PROCARRAY,
    ),
    "procarray-postgres17-fixed": Stall(
        lambda: Postgres17(*SNAPSHOT_SETTINGS, parent=MEMORY),
        snapshots_fixed,
        "no stall: 4 connections run a hundred transactions a second, and none stays open",
    ),
    "relation-extend-page-postgres-fixed": Stall(
        lambda: Postgres(parent=MEMORY),
        relation_extend_fixed,
        "no stall: 20 connections insert a hundred large rows a second, on a quick disk",
    ),
    "relation-extend-page-postgres17-fixed": Stall(
        lambda: Postgres17(parent=MEMORY),
        relation_extend_fixed,
        "no stall: 20 connections insert a hundred large rows a second, on a quick disk",
    ),
}

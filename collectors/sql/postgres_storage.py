# SPDX-License-Identifier: Apache-2.0
"""What a PostgreSQL counts of its commits, rows and writes: stallscope.model.storagecounters."""

from __future__ import annotations

import time

from stallscope.base.text import one_line
from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.postgres_session import PostgresSession
from stallscope.model.storagecounters import StorageCounters

__all__ = ["read_postgres_counters"]

# Each statement's columns have the names below it, in this order.
DATABASES = """\
SELECT pg_catalog.sum(xact_commit), pg_catalog.sum(xact_rollback), pg_catalog.sum(tup_inserted),
pg_catalog.sum(tup_updated), pg_catalog.sum(tup_deleted), pg_catalog.sum(temp_bytes)
FROM pg_catalog.pg_stat_database"""
_DATABASES = (
    "xact_commit",
    "xact_rollback",
    "tup_inserted",
    "tup_updated",
    "tup_deleted",
    "temp_bytes",
)
# The next transaction id is only read, not taken; a standby has no insert position.
POSITION = """\
SELECT pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot()),
pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END, '0/0')"""
_POSITION = ("next_xid", "wal_position")
WAL = "SELECT wal_records, wal_fpi, wal_bytes FROM pg_catalog.pg_stat_wal"
_WAL = ("wal_records", "wal_fpi", "wal_bytes")
BGWRITER = """\
SELECT buffers_checkpoint, buffers_clean, buffers_backend, checkpoints_timed + checkpoints_req
FROM pg_catalog.pg_stat_bgwriter"""
_BGWRITER = ("buffers_checkpoint", "buffers_clean", "buffers_backend", "checkpoints")
CHECKPOINTER = """\
SELECT c.buffers_written, b.buffers_clean, c.num_timed + c.num_requested
FROM pg_catalog.pg_stat_checkpointer c, pg_catalog.pg_stat_bgwriter b"""
_CHECKPOINTER = ("buffers_checkpoint", "buffers_clean", "checkpoints")
SETTINGS = """\
SELECT name, setting, unit FROM pg_catalog.pg_settings WHERE name IN ('block_size',
'checkpoint_timeout', 'commit_delay', 'commit_siblings', 'data_checksums', 'data_directory',
'fsync', 'full_page_writes', 'io_method', 'max_wal_size', 'shared_buffers', 'synchronous_commit',
'wal_block_size', 'wal_buffers', 'wal_compression', 'wal_init_zero', 'wal_level', 'wal_recycle',
'wal_segment_size', 'wal_sync_method', 'wal_writer_delay')"""
_MAX_VALUE = 4096
_WITH_WAL = (14, 0, 0)
_WITH_CHECKPOINTER = (17, 0, 0)


def read_postgres_counters(session: PostgresSession) -> StorageCounters:
    """Ask once; what the role or the version does not have is ``missing``. Raises: SqlError."""
    clock_s = time.monotonic()
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    numbers = session.version.numbers
    asked = [(POSITION, "", _POSITION), (DATABASES, "pg_stat_database.", _DATABASES)]
    if numbers >= _WITH_WAL:
        asked.append((WAL, "pg_stat_wal.", _WAL))
    else:
        missing["pg_stat_wal"] = "not in this version: PostgreSQL 14 is the first with it"
    bgwriter = numbers < _WITH_CHECKPOINTER
    asked.append(
        (BGWRITER, "pg_stat_bgwriter.", _BGWRITER)
        if bgwriter
        else (CHECKPOINTER, "pg_stat_bgwriter.", _CHECKPOINTER)
    )
    for statement, prefix, names in asked:
        try:
            rows = session.select(statement, max_rows=1)
        except StatementError as error:
            missing[prefix.rstrip(".") or "position"] = str(error)
            continue
        for name, text in zip(names, rows[0] if rows else (), strict=False):
            if (value := number(text)) is not None:
                values[prefix + name] = value
    settings = {
        str(name): one_line(f"{value}{_unit(unit)}", _MAX_VALUE)
        for name, value, unit in session.select(SETTINGS)
    }
    return StorageCounters(
        clock_s=clock_s,
        family="postgres",
        version=session.version.text,
        session=session.facts.connection,
        values=values,
        settings=settings,
        missing=missing,
    )


def _unit(unit: str | None) -> str:
    """Return the unit of a setting so that `16384` of `8kB` reads ``16384 x 8kB``."""
    if not unit:
        return ""
    return f" x {unit}" if unit[0].isdigit() else f" {unit}"

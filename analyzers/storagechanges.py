# SPDX-License-Identifier: Apache-2.0
"""What a server did between two samples of its counters: commits, rows, bytes of rows.

No server counts the transactions that changed something under one name. What was measured on
MySQL 5.5.9 and 9.7, MariaDB 10.11 and 11.8 (tests/live/test_storage_counters.py repeats it):

- ``Binlog_cache_use`` grows by one for each transaction that changed something, on all of them,
  if the binary log is on.
- ``Handler_commit`` counts statements as well as transactions, and reads as well as writes.
- ``Com_commit`` counts neither transactions in autocommit mode nor whether anything was changed.
- MariaDB's ``Innodb_max_trx_id`` grows by two for each transaction that changes something, by one
  for each that wanted to.
- A transaction id of PostgreSQL is taken by each transaction that changes something.
"""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.model.storagecounters import Commits, StorageChanges, StorageCounters

__all__ = ["changes", "is_on"]

_DML = (
    "Com_delete",
    "Com_delete_multi",
    "Com_insert",
    "Com_insert_select",
    "Com_load",
    "Com_replace",
    "Com_replace_select",
    "Com_update",
    "Com_update_multi",
)
_INNODB_ROWS = ("Innodb_rows_inserted", "Innodb_rows_updated", "Innodb_rows_deleted")
_HANDLER_ROWS = ("Handler_write", "Handler_update", "Handler_delete")
_POSTGRES_ROWS = tuple(f"pg_stat_database.tup_{how}" for how in ("inserted", "updated", "deleted"))
_LOG_POSITIONS = ("Innodb_lsn_current", "Innodb_redo_log_current_lsn", "wal_position")
_FEW = 0.02
"""Of the transactions, those outside of explicit ones that make no difference."""


def changes(first: StorageCounters, last: StorageCounters) -> StorageChanges:
    """Return what happened between two samples of one server."""
    restarted = first.session != last.session or last.values.get("Uptime", 0) < first.values.get(
        "Uptime", 0
    )
    seconds = max(0.0, last.clock_s - first.clock_s)
    if restarted:
        return StorageChanges(
            seconds,
            last.family,
            last.version,
            settings=last.settings,
            restarted=True,
            notes=("the server was restarted, or the connection ended, between the samples",),
        )
    grown = {
        name: value - first.values[name]
        for name, value in last.values.items()
        if name in first.values and value >= first.values[name]
    }
    rows, rows_source = _rows(grown, last)
    row_bytes, row_bytes_source = _row_bytes(grown, last)
    notes = [f"{name}: {why}" for name, why in last.missing.items()]
    return StorageChanges(
        seconds,
        last.family,
        last.version,
        commits=_commits(grown, last),
        rows=rows,
        rows_source=rows_source,
        row_bytes=row_bytes,
        row_bytes_source=row_bytes_source,
        log_bytes=next((grown[name] for name in _LOG_POSITIONS if name in grown), None),
        counters=grown,
        settings=last.settings,
        notes=tuple(notes),
    )


def is_on(setting: str | None) -> bool | None:
    """Return whether a setting is on, None where it is not known."""
    if setting is None:
        return None
    return setting.upper() not in ("OFF", "0", "NO", "FALSE", "")


def _sum(grown: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """Return the sum; None where one of them is not known."""
    found = [grown.get(name) for name in names]
    return None if None in found else sum(value for value in found if value is not None)


def _commits(grown: Mapping[str, float], last: StorageCounters) -> Commits | None:
    if last.family == "postgres":
        if "next_xid" in grown:
            source = "transaction ids; subtransactions and rollbacks that wrote are among them"
            return Commits(grown["next_xid"], source, exact=True)
        if (count := grown.get("pg_stat_database.xact_commit")) is not None:
            return Commits(count, "xact_commit; those that only read are among them", exact=False)
        return None
    if is_on(last.settings.get("log_bin")) and "Binlog_cache_use" in grown:
        count = grown["Binlog_cache_use"] + grown.get("Binlog_stmt_cache_use", 0.0)
        return Commits(count, "Binlog_cache_use", exact=True)
    return _without_binlog(grown)


def _without_binlog(grown: Mapping[str, float]) -> Commits | None:
    if "Com_commit" not in grown:
        return None
    statements = sum(grown.get(name, 0.0) for name in _DML)
    explicit = grown["Com_commit"] + grown.get("Com_xa_commit", 0.0)
    if explicit == 0 or statements == 0:
        return Commits(statements, "statements that write, in autocommit mode", exact=False)
    if "Innodb_max_trx_id" in grown:
        count = min(grown["Innodb_max_trx_id"] / 2, explicit + statements)
        return Commits(count, "half of Innodb_max_trx_id", exact=False)
    transactions = grown.get("performance_schema.transactions")
    if transactions is not None:
        others = max(0.0, transactions - explicit - grown.get("Com_rollback", 0.0))
        if others > _FEW * transactions:
            count = explicit + min(others, statements)
            return Commits(count, "Com_commit, and transactions in autocommit mode", exact=False)
    return Commits(explicit, "Com_commit; those in autocommit mode are missing", exact=False)


def _rows(grown: Mapping[str, float], last: StorageCounters) -> tuple[float | None, str | None]:
    if last.family == "postgres":
        return _sum(grown, _POSTGRES_ROWS), "pg_stat_database.tup_inserted, _updated, _deleted"
    if (rows := _sum(grown, _INNODB_ROWS)) is not None:
        return rows, "Innodb_rows_inserted, _updated, _deleted"
    # MySQL counts rows of temporary tables there too, those of SHOW STATUS itself included.
    if last.family == "mariadb" and (rows := _sum(grown, _HANDLER_ROWS)) is not None:
        return rows, "Handler_write, _update, _delete"
    return None, None


def _row_bytes(
    grown: Mapping[str, float], last: StorageCounters
) -> tuple[float | None, str | None]:
    if last.family == "postgres":
        wal, pages = grown.get("pg_stat_wal.wal_bytes"), grown.get("pg_stat_wal.wal_fpi")
        block = last.settings.get("block_size", "")
        compressed = last.settings.get("wal_compression", "off") != "off"
        if wal is None or pages is None or not block.isdecimal() or (compressed and pages):
            return None, None
        # The hole in the middle of a page is left out of its image: this is the least.
        return max(0.0, wal - pages * int(block)), "WAL records without their images of pages"
    if last.settings.get("binlog_format", "").upper() == "ROW" and is_on(
        last.settings.get("log_bin")
    ):
        written = grown.get("Binlog_bytes_written")
        compressed = any(
            is_on(last.settings.get(name)) or False
            for name in ("binlog_transaction_compression", "log_bin_compress")
        )
        if written is not None and not compressed:
            return written, "binary log in row format"
    return None, None

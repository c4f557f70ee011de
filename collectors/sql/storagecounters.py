# SPDX-License-Identifier: Apache-2.0
"""What a server counts of its commits, rows and writes, for the ``storage`` commands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stallscope.base.text import one_line
from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.model.storagecounters import StorageCounters

if TYPE_CHECKING:
    from stallscope.collectors.sql.postgres_session import PostgresSession

__all__ = ["read_counters"]

STATUS = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Binlog_bytes_written', 'Binlog_cache_disk_use',"
    " 'Binlog_cache_use', 'Binlog_commits', 'Binlog_group_commits', 'Binlog_stmt_cache_use',"
    " 'Com_begin', 'Com_commit', 'Com_delete', 'Com_delete_multi', 'Com_insert',"
    " 'Com_insert_select', 'Com_load', 'Com_replace', 'Com_replace_select', 'Com_rollback',"
    " 'Com_update', 'Com_update_multi', 'Com_xa_commit', 'Created_tmp_disk_tables',"
    " 'Handler_commit', 'Handler_delete', 'Handler_prepare', 'Handler_update', 'Handler_write',"
    " 'Innodb_data_fsyncs', 'Innodb_data_writes', 'Innodb_data_written',"
    " 'Innodb_dblwr_pages_written', 'Innodb_dblwr_writes', 'Innodb_log_write_requests',"
    " 'Innodb_log_writes', 'Innodb_lsn_current', 'Innodb_max_trx_id', 'Innodb_os_log_fsyncs',"
    " 'Innodb_os_log_written', 'Innodb_page_size', 'Innodb_pages_written',"
    " 'Innodb_redo_log_current_lsn', 'Innodb_rows_deleted', 'Innodb_rows_inserted',"
    " 'Innodb_rows_updated', 'Questions', 'Sort_merge_passes', 'Threads_running', 'Uptime')"
)
VARIABLES = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('autocommit', 'binlog_commit_wait_count',"
    " 'binlog_commit_wait_usec', 'binlog_format', 'binlog_group_commit_sync_delay',"
    " 'binlog_row_image', 'binlog_transaction_compression', 'datadir', 'innodb_buffer_pool_size',"
    " 'innodb_data_home_dir', 'innodb_doublewrite', 'innodb_doublewrite_dir',"
    " 'innodb_file_per_table', 'innodb_flush_log_at_trx_commit', 'innodb_flush_method',"
    " 'innodb_flush_neighbors', 'innodb_io_capacity', 'innodb_log_buffer_size',"
    " 'innodb_log_file_size', 'innodb_log_files_in_group', 'innodb_log_group_home_dir',"
    " 'innodb_log_write_ahead_size', 'innodb_max_dirty_pages_pct', 'innodb_page_size',"
    " 'innodb_redo_log_capacity', 'innodb_undo_directory', 'innodb_use_atomic_writes',"
    " 'innodb_use_native_aio', 'log_bin', 'log_bin_basename', 'log_bin_compress',"
    " 'log_slave_updates', 'log_replica_updates', 'relay_log_basename', 'sync_binlog',"
    " 'sync_relay_log', 'tmpdir')"
)
TRANSACTIONS = (
    "SELECT COUNT_STAR FROM performance_schema.events_transactions_summary_global_by_event_name"
)
TRANSACTIONS_COUNTED = "performance_schema.transactions"
_MAX_VALUE = 4096


def read_counters(session: SqlSession | PostgresSession) -> StorageCounters:
    """Ask the server of an open session once, whichever server it is.

    Raises: SqlError where it does not answer, or refuses the counters of commits.
    """
    if session.version.family == "postgres":
        # Imported here: who asks one server needs no package of the other's.
        from stallscope.collectors.sql.postgres_session import PostgresSession
        from stallscope.collectors.sql.postgres_storage import read_postgres_counters

        assert isinstance(session, PostgresSession)
        return read_postgres_counters(session)
    assert isinstance(session, SqlSession)
    return _read(session)


def _read(session: SqlSession) -> StorageCounters:
    clock_s = time.monotonic()
    values: dict[str, float] = {}
    for name, text in session.select(STATUS):
        value = number(text)
        if value is not None:
            values[str(name)] = value
    settings = {str(n): one_line(str(v), _MAX_VALUE) for n, v in session.select(VARIABLES)}
    # MySQL 5.5 has it as status alone.
    if (page := values.pop("Innodb_page_size", None)) is not None:
        settings.setdefault("innodb_page_size", f"{page:.0f}")
    missing: dict[str, str] = {}
    try:
        rows = session.select(TRANSACTIONS)
        # All of it stays 0 where the server does not count them.
        if rows and (counted := number(rows[0][0])):
            values[TRANSACTIONS_COUNTED] = counted
        else:
            missing["transactions"] = "performance_schema is off, or its instrument 'transaction'"
    except StatementError as error:
        missing["transactions"] = str(error)
    return StorageCounters(
        clock_s=clock_s,
        family=session.version.family,
        version=session.version.text,
        session=session.number,
        values=values,
        settings=settings,
        missing=missing,
    )

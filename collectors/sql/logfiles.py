# SPDX-License-Identifier: Apache-2.0
"""Where a server keeps its logs and data, who reads its binary logs, and its buffer pool's size."""

from __future__ import annotations

from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.processlist import SHOW
from stallscope.collectors.sql.protocol import Row, SqlSession
from stallscope.model.storagecache import LogFiles

__all__ = ["DUMP_THREADS", "VARIABLES", "read_log_files"]

VARIABLES = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('datadir', 'innodb_buffer_pool_size',"
    " 'innodb_data_home_dir', 'innodb_doublewrite_dir', 'innodb_log_group_home_dir',"
    " 'innodb_temp_tablespaces_dir', 'innodb_tmpdir', 'innodb_undo_directory',"
    " 'log_bin_basename', 'log_bin_index', 'relay_log_basename', 'relay_log_index',"
    " 'replica_load_tmpdir', 'slave_load_tmpdir', 'tmpdir')"
)
DUMP_THREADS = (
    "SELECT COUNT(*) FROM performance_schema.threads"
    " WHERE PROCESSLIST_COMMAND IN ('Binlog Dump', 'Binlog Dump GTID')"
)
_COMMANDS = frozenset({"Binlog Dump", "Binlog Dump GTID"})
_FOLDERS = (
    "innodb_data_home_dir",
    "innodb_doublewrite_dir",
    "innodb_log_group_home_dir",
    "innodb_temp_tablespaces_dir",
    "innodb_tmpdir",
    "innodb_undo_directory",
)
_NAMES = ("log_bin_basename", "log_bin_index", "relay_log_basename", "relay_log_index")
_TEMPORARY = ("tmpdir", "slave_load_tmpdir", "replica_load_tmpdir")


def read_log_files(session: SqlSession) -> LogFiles:
    """Ask the server once. Raises: SqlError where it does not answer."""
    values = {str(name): str(value or "") for name, value in session.select(VARIABLES)}
    datadir = values.get("datadir", "")

    def absolute(path: str) -> str:
        joined = path if path.startswith("/") else f"{datadir.rstrip('/')}/{path}"
        return joined.rstrip("/") or "/"

    found = [absolute(values[name]) for name in _FOLDERS if values.get(name)]
    names = [absolute(values[name]) for name in _NAMES if values.get(name)]
    found += [name.rpartition("/")[0] for name in names]
    for name in _TEMPORARY:
        found += [absolute(path) for path in values.get(name, "").split(":") if path]
    pool = number(values.get("innodb_buffer_pool_size"))
    return LogFiles(
        datadir=datadir.rstrip("/") or None,
        folders=tuple(dict.fromkeys(path for path in found if path.startswith("/"))),
        indexes=tuple(
            absolute(values[name])
            for name in ("log_bin_index", "relay_log_index")
            if values.get(name)
        ),
        dump_threads=_dump_threads(session),
        buffer_pool_bytes=None if pool is None else int(pool),
    )


def _dump_threads(session: SqlSession) -> int | None:
    if session.has_threads_table:
        try:
            return int(session.select(DUMP_THREADS)[0][0])
        except (StatementError, IndexError, TypeError, ValueError):
            return None
    if not session.has_process:
        return None
    count = 0

    def take(row: Row) -> None:
        nonlocal count
        count += row[4] in _COMMANDS

    session.each(SHOW, take)
    return count

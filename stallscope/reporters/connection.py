# SPDX-License-Identifier: Apache-2.0
"""The SQL statements that find the connection of a thread, and its KILL."""

from __future__ import annotations

from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.names import bare
from stallscope.analyzers.server import numbers
from stallscope.model.capture import Thread
from stallscope.reporters.counts import target_process

__all__ = ["connection_query", "kill_query", "learn_command"]

_SESSION = frozenset({"handle_one_connection", "do_handle_one_connection", "handle_connection"})
_MARIADB = "SELECT id, user, host, time, info FROM information_schema.processlist WHERE tid = {tid}"
_MYSQL = (
    "SELECT processlist_id, processlist_user, processlist_host, processlist_info"
    " FROM performance_schema.threads WHERE thread_os_id = {tid}"
)
_MARIADB_KILL = (
    "SELECT CONCAT('KILL ', id, ';') FROM information_schema.processlist WHERE tid = {tid};"
)
_MYSQL_KILL = (
    "SELECT CONCAT('KILL ', processlist_id, ';') FROM performance_schema.threads"
    " WHERE thread_os_id = {tid};"
)
_MYSQL_SINCE = (5, 7)
"""performance_schema.threads has had THREAD_OS_ID since 5.7.9."""


def connection_query(analysis: Analysis, thread: Thread) -> str | None:
    """Return the SQL that finds the thread's connection; None where the server has no such table.
    The server's tables have thread ids of its own pid namespace.
    """
    return _for_server(analysis, thread, _MARIADB, _MYSQL)


def kill_query(analysis: Analysis, thread: Thread) -> str | None:
    """Return the SQL whose answer is the KILL of the thread's connection; None as above."""
    if thread.connection is not None:
        return None
    return _for_server(analysis, thread, _MARIADB_KILL, _MYSQL_KILL)


def learn_command(analysis: Analysis) -> str | None:
    """Return the command that learns the connections of a live server which does not report its
    threads (MySQL before 5.7); None for others."""
    process = target_process(analysis)
    if analysis.server != "mysql" or process is None or analysis.inputs:
        return None
    pid = analysis.capture.processes[process].pid
    version = numbers(analysis.version)
    if not (pid and version) or version >= _MYSQL_SINCE:
        return None
    if any(thread.connection is not None for thread in analysis.capture.threads):
        return None
    return f"stallscope snap -p {pid} --calibrate"


def _for_server(analysis: Analysis, thread: Thread, mariadb: str, mysql: str) -> str | None:
    if not thread.tid or _SESSION.isdisjoint(bare(str(frame)) for frame in thread.frames):
        return None
    tid = thread.ns_tid or thread.tid
    if analysis.server == "mariadb":
        return mariadb.format(tid=tid)
    if analysis.server == "mysql" and numbers(analysis.version) >= _MYSQL_SINCE:
        return mysql.format(tid=tid)
    return None

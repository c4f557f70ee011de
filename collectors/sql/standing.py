# SPDX-License-Identifier: Apache-2.0
"""Settings and counters that say whether a server lets clients in, and lets them write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from pymysql.converters import escape_string

from stallscope.collectors.sql import group_replication, replication
from stallscope.collectors.sql.collecting import SqlCollector, number
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.status import SOME
from stallscope.collectors.sql.writable import Writable

__all__ = ["SETTINGS", "STATUS", "Settings", "read"]

SETTINGS = (
    "innodb_read_only",
    "max_connections",
    "offline_mode",
    "read_only",
    "skip_name_resolve",
    "super_read_only",
    "wsrep_on",
)
"""Those that the server does not have are left out of samples."""
STATUS = (
    "Aborted_connects",
    "Connection_errors_max_connections",
    "Rpl_semi_sync_master_clients",
    "Rpl_semi_sync_master_wait_sessions",
    "Rpl_semi_sync_source_clients",
    "Rpl_semi_sync_source_wait_sessions",
    "Threads_connected",
    "wsrep_cluster_size",
    "wsrep_flow_control_active",
    "wsrep_flow_control_requested",
    "wsrep_local_recv_queue",
    "wsrep_ready",
)
"""What a capture asks for once."""
VARIABLES = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})"
VALUES = "SELECT @@GLOBAL.{}"
"""Costs a tenth of SHOW VARIABLES, which makes a table of all."""
_NOT_WRITABLE = ("read_only", "super_read_only", "innodb_read_only")
_ENUMS = ("read_only",)
"""From MariaDB 12 on it has values beside ON, such as NO_LOCK: each refuses writes."""


class Settings(SqlCollector):
    """``settings.max_connections`` and the others of SETTINGS; ON is 1. Also:
    ``settings.client_connections``, how many clients it lets in, and
    ``settings.became_read_only`` of Writable.
    """

    name = "settings"

    def __init__(self, connection: Connection, deadline: float | None = None) -> None:
        super().__init__(connection, deadline)
        self._writable = Writable()
        self._known: tuple[int, tuple[str, ...]] = (0, ())
        """The settings that the server of a session has: it can be another version after a
        restart."""

    def read(self, session: SqlSession) -> dict[str, float]:
        number, names = self._known
        if number != session.number:
            found = _settings(session.select(_listing(VARIABLES, SETTINGS)))
            names = tuple(name for name in SETTINGS if f"settings.{name}" in found)
            self._known = session.number, names
        elif names:
            (row,) = session.select(VALUES.format(", @@GLOBAL.".join(names)), max_rows=1)
            found = _settings(zip(names, row, strict=True))
        else:
            found = {}
        modes = [found[key] for name in _NOT_WRITABLE if (key := f"settings.{name}") in found]
        return {**found, **self._writable.since(any(modes))} if modes else found


def read(session: SqlSession) -> dict[str, float]:
    """Return the settings, the counters of STATUS, and the numbers of replication and of a group,
    once. Raises: SqlError."""
    found = _settings(session.select(_listing(VARIABLES, SETTINGS)))
    for row in session.select(_listing(SOME, STATUS)):
        value = number(row[1])
        if value is not None:
            found[str(row[0])] = value
    for others in (replication.read, group_replication.read):
        with contextlib.suppress(StatementError):  # the account may not see it: unknown
            found |= others(session)
    return found


def _settings(rows: Iterable[Sequence[object]]) -> dict[str, float]:
    """Return ``settings.NAME`` of rows of name and value."""
    found: dict[str, float] = {}
    for name, text in rows:
        value = number(text)
        if value is None and name in _ENUMS and text:
            value = 1.0
        if value is not None:
            found[f"settings.{name}"] = value
    if (limit := found.get("settings.max_connections")) is not None:
        found["settings.client_connections"] = limit
    return found


def _listing(statement: str, names: Iterable[str]) -> str:
    return statement.format(", ".join("'" + escape_string(name) + "'" for name in names))

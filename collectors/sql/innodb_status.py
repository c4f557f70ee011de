# SPDX-License-Identifier: Apache-2.0
"""``SHOW ENGINE INNODB STATUS``: its text for incidents, and a few of its numbers."""

from __future__ import annotations

from stallscope.collectors.sql.collecting import SqlCollector
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.server.innodbnumbers import numbers

__all__ = ["MAX_TEXT", "InnodbStatus", "read_report"]

STATUS = "SHOW ENGINE INNODB STATUS"

MAX_TEXT = 1 << 20
"""The most characters that are kept; the server itself stops at 1 MB or before."""


class InnodbStatus(SqlCollector):
    """``innodb.history_list_length``, ``.checkpoint_age``, ``.semaphore_waits`` and others."""

    name = "innodb_status"
    default_deadline = 2.0

    def read(self, session: SqlSession) -> dict[str, float]:
        return numbers(read_report(session))


def read_report(session: SqlSession) -> str:
    """Return the report; its SQL has literals, as the server prints it. Raises: SqlError."""
    rows = session.select(STATUS, max_rows=1)
    if not rows:
        raise StatementError("the server has no InnoDB, or it is off", 0)
    return str(rows[0][-1])[:MAX_TEXT]

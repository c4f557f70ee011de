# SPDX-License-Identifier: Apache-2.0
"""Replication of all channels: ``SHOW REPLICA STATUS`` and what it was called before."""

from __future__ import annotations

from typing import Any

from stallscope.base.text import one_line
from stallscope.collectors.sql.collecting import SqlCollector, number
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession

__all__ = ["Replication", "numbers", "read"]

REPLICA = "SHOW REPLICA STATUS"  # MySQL from 8.0.22 on: all channels
ALL_SLAVES = "SHOW ALL SLAVES STATUS"  # MariaDB: all connections
SLAVE = "SHOW SLAVE STATUS"

MAX_CHANNELS = 64
_SYNTAX = 1064


class Replication(SqlCollector):
    """``replication.channels``, and of each channel ``replication.NAME.lag_s`` and similar.

    The channel without a name is ``default``. A lag that the server does not know is left out:
    its threads say why (``io_running`` and ``sql_running``, 1 or 0). Of all channels together:
    ``replication.stopped``, of which a thread does not run, and ``replication.lag_s``, the longest
    lag beyond a deliberate delay.
    """

    name = "replication"

    def __init__(self, connection: Connection, deadline: float | None = None) -> None:
        super().__init__(connection, deadline)
        self._known: str | None = None
        """The statement that the server has."""

    def read(self, session: SqlSession) -> dict[str, float]:
        self._known, rows = _rows(session, self._known)
        return numbers(rows)


def read(session: SqlSession) -> dict[str, float]:
    """Return the same numbers, once. Raises: SqlError."""
    return numbers(_rows(session, None)[1])


def _rows(session: SqlSession, known: str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the statement that the server has, and its rows."""
    order = (ALL_SLAVES, SLAVE) if session.version.mariadb else (REPLICA, SLAVE)
    for statement in (known,) if known else order:
        try:
            return statement, session.records(statement, max_rows=MAX_CHANNELS)
        except StatementError as error:
            if error.number != _SYNTAX or statement is order[-1]:
                raise
    raise AssertionError("the last statement returned or raised")


def numbers(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the numbers of each channel from its row, by lower-case column."""
    values = {"replication.channels": float(len(rows)), "replication.stopped": 0.0}
    lags = []
    for row in rows:
        channel = row.get("channel_name") or row.get("connection_name") or "default"
        prefix = f"replication.{one_line(str(channel), 64)}"
        lag = number(_either(row, "seconds_behind_source", "seconds_behind_master"))
        if lag is not None:
            values[f"{prefix}.lag_s"] = lag
            lags.append(lag - (number(row.get("sql_delay")) or 0.0))
        runs = []
        for name in ("io", "sql"):
            running = _either(row, f"replica_{name}_running", f"slave_{name}_running")
            values[f"{prefix}.{name}_running"] = float(running == "Yes")
            runs.append(running == "Yes")
            failure = number(row.get(f"last_{name}_errno"))
            if failure:
                values[f"{prefix}.{name}_errno"] = failure
        values["replication.stopped"] += not all(runs)
    if lags:
        values["replication.lag_s"] = max(0.0, *lags)
    return values


def _either(row: dict[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if name in row), None)

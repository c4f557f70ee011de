# SPDX-License-Identifier: Apache-2.0
"""``SHOW GLOBAL STATUS``: numbers under the server's own names."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.collectors.sql.collecting import SqlCollector, number
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.protocol import Row, SqlSession

__all__ = ["Status"]

ALL = "SHOW GLOBAL STATUS"
SOME = "SHOW GLOBAL STATUS WHERE Variable_name IN ({})"

MAX_VARIABLES = 5000


class Status(SqlCollector):
    """``names`` limits it to those: reading all 500 costs ten times as much."""

    name = "status"

    def __init__(
        self,
        connection: Connection,
        deadline: float | None = None,
        *,
        names: Iterable[str] | None = None,
    ) -> None:
        super().__init__(connection, deadline)
        self._names = None if names is None else tuple(sorted(set(names)))

    def read(self, session: SqlSession) -> dict[str, float]:
        values: dict[str, float] = {}

        def take(row: Row) -> None:
            value = number(row[1])
            if value is not None and len(values) < MAX_VARIABLES:
                values[str(row[0])] = value

        if self._names is None:
            session.each(ALL, take)
        elif self._names:
            session.each(SOME.format(", ".join(["%s"] * len(self._names))), take, self._names)
        return values

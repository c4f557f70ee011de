# SPDX-License-Identifier: Apache-2.0
"""``SHOW GLOBAL STATUS``: numbers under the server's own names."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pymysql.converters import escape_string

from stallscope.collectors.sql.collecting import SqlCollector, number
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.protocol import Row, SqlSession

__all__ = ["Status"]

ALL = "SHOW GLOBAL STATUS"
SOME = "SHOW GLOBAL STATUS WHERE Variable_name IN ({})"

MAX_VARIABLES = 5000
WHOLE_SECONDS = 30.0
"""At rest, from one sample of all the names to the next."""


class Status(SqlCollector):
    """``names`` limits it to those: reading all 500 costs ten times as much.

    ``few``: those of the names that are asked for at every poll; the others, while ``at_rest`` is
    set, every WHOLE_SECONDS.
    """

    name = "status"

    def __init__(
        self,
        connection: Connection,
        deadline: float | None = None,
        *,
        names: Iterable[str] | None = None,
        few: Iterable[str] = (),
    ) -> None:
        super().__init__(connection, deadline)
        self.at_rest = False
        self.latest: dict[str, float] = {}
        """The values of the latest answer: nobody else has to ask for them."""
        self._all = ALL if names is None else _statement(names)
        self._few = _statement(few) or self._all
        self._whole_at = -WHOLE_SECONDS

    def read(self, session: SqlSession) -> dict[str, float]:
        now = time.monotonic()
        # Early: polls come a little early and late.
        whole = not self.at_rest or now - self._whole_at >= WHOLE_SECONDS - 0.1
        if whole:
            self._whole_at = now
        values: dict[str, float] = {}

        def take(row: Row) -> None:
            value = number(row[1])
            if value is not None and len(values) < MAX_VARIABLES:
                values[str(row[0])] = value

        if statement := self._all if whole else self._few:
            session.each(statement, take)
        self.latest = values
        return values


def _statement(names: Iterable[str]) -> str:
    """Return the statement for these names; it is escaped once, not at every poll."""
    wanted = sorted(set(names))
    literals = ", ".join("'" + escape_string(name) + "'" for name in wanted)
    return SOME.format(literals) if wanted else ""

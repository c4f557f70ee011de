# SPDX-License-Identifier: Apache-2.0
"""``SHOW GLOBAL STATUS``: numbers under the server's own names."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from statistics import median

from pymysql.converters import escape_string

from stallscope.collectors.sql.collecting import SqlCollector, number
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.protocol import Row, SqlSession

__all__ = ["RATES", "SOME", "Pulse", "Status"]

RATES = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Questions', 'Threads_running')"
"""What `top` draws over time."""

ALL = "SHOW GLOBAL STATUS"
SOME = "SHOW GLOBAL STATUS WHERE Variable_name IN ({})"
OWN = "SHOW SESSION STATUS WHERE Variable_name IN ({})"

MAX_VARIABLES = 5000
SHARE = 0.002
"""The share of the time that the status may take at rest: the server adds up the counters of all
connections, which takes it milliseconds where there are thousands."""
SLOWEST = 4.0
"""The most seconds between two samples at rest: triggers still know its values then."""
REMEMBERED = 5
"""Of so many answers the median counts."""
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
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def rest_interval(self) -> float:
        """Return the least seconds between two samples at rest, 0 where it is cheap."""
        seconds = median(self._took) / SHARE if self._took else 0.0
        return min(SLOWEST, seconds) if seconds > 1.0 else 0.0

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
        self._took.append(time.monotonic() - now)
        self.latest = {**self.latest, **values}
        return values


class Pulse(SqlCollector):
    """At rest, in place of a status that is expensive: values that no connection has of its own,
    for which the server adds up nothing.
    """

    name = "pulse"
    names = ("Innodb_deadlocks", "Innodb_row_lock_current_waits", "Threads_running", "Uptime")

    def __init__(self, connection: Connection, status: Status) -> None:
        super().__init__(connection, status.deadline)
        self._status = status
        self._statement = _statement(self.names, OWN)

    @property
    def interval(self) -> float:
        return math.inf

    @property
    def rest_interval(self) -> float:
        """Return 0 where it is needed, infinity where the status is asked at each poll."""
        return 0.0 if self._status.rest_interval else math.inf

    def read(self, session: SqlSession) -> dict[str, float]:
        rows = session.select(self._statement)
        found = {str(name): number(text) for name, text in rows}
        values = {name: value for name, value in found.items() if value is not None}
        self._status.latest = {**self._status.latest, **values}
        return values


def _statement(names: Iterable[str], of: str = SOME) -> str:
    """Return the statement for these names; it is escaped once, not at every poll."""
    wanted = sorted(set(names))
    literals = ", ".join("'" + escape_string(name) + "'" for name in wanted)
    return of.format(literals) if wanted else ""

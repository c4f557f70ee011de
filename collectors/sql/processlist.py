# SPDX-License-Identifier: Apache-2.0
"""Counts of the processlist: running, sleeping, by command and state, and the longest."""

from __future__ import annotations

import time
from collections import Counter, deque

from stallscope.base.text import one_line
from stallscope.collectors.sql.collecting import REST_SECONDS, SqlCollector, number
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import Row, SqlSession

__all__ = ["BACKGROUND", "SHOW", "Processlist", "logs_in"]

# The server does the counting, without a lock on any connection and without a temporary file.
THREADS = """\
SELECT PROCESSLIST_COMMAND, PROCESSLIST_STATE, MAX(PROCESSLIST_TIME), COUNT(*),
SUM(PROCESSLIST_USER IS NULL AND NAME = 'thread/sql/one_connection')
FROM performance_schema.threads
WHERE TYPE = 'FOREGROUND' AND PROCESSLIST_ID <> CONNECTION_ID()
GROUP BY 1, 2"""
# information_schema.PROCESSLIST can count too, but makes a temporary table on disk each time
# (Created_tmp_disk_tables; MySQL 5.5 to 9.7, MariaDB 10.11): it hangs where the disk does.
SHOW = "SHOW PROCESSLIST"

BUSY_SHARE = 0.03
"""The share of the time that SHOW PROCESSLIST may take otherwise: it holds a lock on the list of
connections meanwhile, and in old versions none can begin or end."""
REST_SHARE = 0.0005
"""The share of the time that the list may take at rest, where no sign of waiting needs it:
thousands of connections are many rows."""
REMEMBERED = 5
"""Of so many lists the shortest time counts: the others waited, for a CPU or in a stall, and a
collector that is asked rarely then sees nothing of it. Fewer say nothing."""
MAX_NAMES = 200
"""Commands and states that are counted by name; the rest is ``other``."""

BACKGROUND = frozenset(
    {"Daemon", "Binlog Dump", "Binlog Dump GTID", "Connect", "Slave_IO"}
    | {"Slave_SQL", "Slave_worker", "Clone"}
)
"""Commands of background connections: their time is the age of the connection."""
_SLEEP = "Sleep"
_UNAUTHENTICATED = "unauthenticated user"
"""What the processlist calls the user of a connection that has not logged in; in
performance_schema it has none, and one of these commands."""
_LOGIN_COMMANDS = frozenset({"Connect", _SLEEP})
_BASIC = ("total", "running", "sleeping", "background", "unauthenticated")


def logs_in(user: object, command: object) -> bool:
    """Return whether a connection has not logged in yet."""
    return user == _UNAUTHENTICATED or (user is None and command in _LOGIN_COMMANDS)


class Processlist(SqlCollector):
    """``processlist.running``: with a statement, without background connections and our own.

    Also: ``processlist.sleeping``, ``.background``, ``.total``, ``.unauthenticated`` (those whose
    login goes on), ``.longest_s`` (of the running ones), ``.command.Query``,
    ``.state.Sending data``.
    """

    name = "processlist"

    def __init__(
        self,
        connection: Connection,
        deadline: float | None = None,
        rest_interval: float = REST_SECONDS,
    ) -> None:
        super().__init__(connection, deadline)
        self._rest_interval = rest_interval
        self._times: deque[float] = deque(maxlen=REMEMBERED)
        """In seconds."""
        self._is_shown = False
        """It comes from SHOW PROCESSLIST."""

    @property
    def interval(self) -> float:
        """Return 0, each poll, where the list is no longer than thousands of connections."""
        return self._takes / BUSY_SHARE if self._is_shown else 0.0

    @property
    def rest_interval(self) -> float:
        """Return 0 where each poll needs it; else it is longer where the list is."""
        return self._rest_interval and max(self._rest_interval, self._takes / REST_SHARE)

    @property
    def _takes(self) -> float:
        return min(self._times) if len(self._times) == REMEMBERED else 0.0

    def read(self, session: SqlSession) -> dict[str, float]:
        begun = time.monotonic()
        try:
            return self._count(session)
        finally:
            self._times.append(time.monotonic() - begun)

    def _count(self, session: SqlSession) -> dict[str, float]:
        counts = _Counts()
        self._is_shown = not session.has_threads_table
        if not self._is_shown:
            session.each(THREADS, lambda row: counts.add(*row))
            return counts.values()
        if not session.has_process:
            raise StatementError(
                "the account sees only its own connections: GRANT PROCESS ON *.* TO it", 1227
            )
        own = session.facts.connection

        def take(row: Row) -> None:
            if row[0] != own:
                counts.add(row[4], row[6], row[5], 1, logs_in(row[1], row[4]))

        session.each(SHOW, take)
        return counts.values()


class _Counts:
    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        self._longest = 0.0

    def add(
        self, command: object, state: object, seconds: object, count: object, nameless: object
    ) -> None:
        """``nameless``: how many of them have no user."""
        weight = int(number(count) or 0)
        word = str(command or "")
        self._numbers["total"] += weight
        if word in _LOGIN_COMMANDS:
            self._numbers["unauthenticated"] += int(number(nameless) or 0)
        self._name("command", word, weight)
        if word == _SLEEP:
            self._numbers["sleeping"] += weight
            return
        if word in BACKGROUND or not word:
            self._numbers["background"] += weight
            return
        self._numbers["running"] += weight
        self._name("state", str(state or ""), weight)
        # A time can be negative or 2^32 where clocks were set back: it says nothing then.
        lasted = number(seconds) or 0.0
        if lasted < 1 << 31:
            self._longest = max(self._longest, lasted)

    def _name(self, kind: str, word: str, weight: int) -> None:
        if not word:
            return
        key = f"{kind}.{one_line(word, 80)}"
        if key not in self._names and len(self._names) >= MAX_NAMES:
            key = f"{kind}.other"
        self._names[key] += weight

    def values(self) -> dict[str, float]:
        basic = {key: float(self._numbers[key]) for key in _BASIC}
        named = {key: float(count) for key, count in self._names.items()}
        return {
            f"processlist.{key}": value
            for key, value in {**basic, "longest_s": self._longest, **named}.items()
        }

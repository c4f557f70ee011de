# SPDX-License-Identifier: Apache-2.0
"""Every deadlock that a server reports: in its error log, or the latest one in its status.

With innodb_print_all_deadlocks on, each is in the error log, which is followed. Otherwise the
status has the latest one alone: it is asked for when the server's counter moved, or somebody gives
a cue (a probe saw a deadlock), at most once in REPORT_SECONDS. The counter is a status variable,
which another collector reads anyway; MySQL has it only in a table of information_schema. Deadlocks
between two reports are lost then, and counted as ``missed``, where the server counts deadlocks at
all.
"""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors.logfile import LogFollower
from stallscope.collectors.paths import asking
from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.server.deadlocks import Deadlock, Reader, key, of_status
from stallscope.server.statements import Statement, normalizer

__all__ = ["Counts", "DeadlockWatch"]

T = TypeVar("T")

VARIABLES = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
    " ('innodb_print_all_deadlocks', 'log_error', 'datadir', 'sql_mode')"
)
COUNTER = "Innodb_deadlocks"
"""The status variable of MariaDB and Percona Server."""
METRIC = "SELECT * FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_deadlocks'"
STATUS = "SHOW ENGINE INNODB STATUS"
SETTINGS_QUESTION, METRIC_QUESTION, REPORT_QUESTION = "variables", "deadlock count", "deadlocks"

REPORT_SECONDS = 60.0
"""The least time between two reports of InnoDB, which hold its lock system while they print all
transactions: deadlocks often come in series. A server that counts no deadlocks, and gave no cue, is
asked as rarely, or not at all where the kernel mutex would be held."""
METRIC_SECONDS = 10.0
"""Between two reads of the metric: the server fills the whole table for it."""
SETTINGS_SECONDS = 60.0
"""Between two reads of the variables: somebody can switch the log on."""
QUIET_SECONDS = 5.0
"""After this pause in the log, a report of a deadlock counts as ended: the server writes line by
line, and can wait for the disk or a CPU between two lines."""
_MAX_KNOWN = 10_000


class _Asks(Protocol):
    """The used part of collectors.sql.connection.Connection."""

    def ask(self, ask: Callable[[SqlSession], T], seconds: float, *, name: str = "") -> T: ...


class Counts(msgspec.Struct, frozen=True):
    """Counts since the watch began."""

    seen: int
    counted: int | None
    """The server's own count; None where it has none."""
    missed: int | None
    """Deadlocks that the server counted and the watch did not read; None where it does not
    count."""
    source: str
    """``log`` or ``status``."""
    why: str | None = None
    """Why the source is not the log."""


class _Settings(msgspec.Struct, frozen=True):
    prints_all: bool
    log: str | None
    normalize: Callable[[str], Statement]
    """The normalizer for the server's SQL mode."""


class DeadlockWatch:
    """The deadlocks of one server process; ``pid`` is its number in our pid namespace."""

    def __init__(
        self,
        connection: _Asks,
        pid: int,
        counted: Callable[[], float | None] = lambda: None,
        deadline: float = 1.0,
    ) -> None:
        """``counted``: the latest value of COUNTER that somebody read, None where the server has
        none."""
        self._connection = connection
        self._status = counted
        self._pid = pid
        self._deadline = deadline
        self._settings: _Settings | None = None
        self._settings_at = 0.0
        self._log: LogFollower | None = None
        self._reader: Reader | None = None
        self._log_said_at = 0.0
        self._why: str | None = None
        self._has_metric = False
        self._has_table = True
        """The server may have the table of metrics."""
        self._metric = 0.0
        self._metric_at = 0.0
        """The latest value of the metric, and when it was read."""
        self._known: OrderedDict[str, None] = OrderedDict()
        self._seen = 0
        self._first: float | None = None
        self._last: float | None = None
        self._report_at = -REPORT_SECONDS
        self._by_timer = False
        """A report without a cue stops nobody else."""
        self._lost = 0.0
        self._owed = False
        """There is a deadlock to read: a read that failed is repeated."""

    def begin(self) -> list[Deadlock]:
        """Start the watch: return the latest deadlock that was there before, if any.

        It is not counted: the number of earlier deadlocks is unknown.
        """
        self._connection.ask(self._configure, self._deadline, name=SETTINGS_QUESTION)
        self._count(self._counted())
        return self._new(self._latest(), counted=False) if self._by_timer else []

    def poll(self, *, cue: bool = False) -> list[Deadlock]:
        """Return the deadlocks that are new; ``cue``: the wait programs saw one.

        Raises: StallscopeError where the server does not answer; what was read of its log is kept
        for the next poll.
        """
        self._owed = self._owed or cue
        if self._settings is None:
            return self.begin()
        if time.monotonic() - self._settings_at >= SETTINGS_SECONDS:
            self._connection.ask(self._configure, self._deadline, name=SETTINGS_QUESTION)
        moved = self._count(self._counted())
        if self._log is not None:
            return self._new(self._from_log(moved=moved))
        self._owed = self._owed or moved or (self._first is None and self._by_timer)
        due = time.monotonic() - self._report_at >= REPORT_SECONDS
        return self._new(self._latest()) if self._owed and due else []

    @property
    def asks(self) -> bool:
        """Return whether a poll sends a statement, apart from that for the settings."""
        return self._log is None or self._has_metric

    @property
    def moved(self) -> bool:
        """Return whether the status variable shows a deadlock that was not read."""
        value = self._status()
        return value is not None and self._last is not None and value != self._last

    def counts(self) -> Counts:
        """Return how many were seen and missed so far."""
        counted = None
        if self._first is not None and self._last is not None:
            counted = int(self._last - self._first + self._lost)
        return Counts(
            seen=self._seen,
            counted=counted,
            missed=None if counted is None else max(0, counted - self._seen),
            source="status" if self._log is None else "log",
            why=self._why,
        )

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
        self._log = None

    def _configure(self, session: SqlSession) -> None:
        values = {str(name).lower(): str(value) for name, value in session.select(VARIABLES)}
        self._settings = _Settings(
            prints_all=values.get("innodb_print_all_deadlocks", "") == "ON",
            log=_log_path(self._pid, values.get("log_error", ""), values.get("datadir", "")),
            normalize=normalizer(values.get("sql_mode", "")),
        )
        self._settings_at = time.monotonic()
        self._follow(self._settings)
        self._by_timer = not session.version.has_kernel_mutex
        if self._has_table and not self._has_metric and self._status() is None:
            self._read_metric(session)

    def _counted(self) -> float | None:
        """Return the server's own count, None where it has none."""
        if not self._has_metric:
            return self._status()
        if time.monotonic() - self._metric_at >= METRIC_SECONDS:
            self._connection.ask(self._read_metric, self._deadline, name=METRIC_QUESTION)
        return self._metric if self._has_metric else None

    def _read_metric(self, session: SqlSession) -> None:
        self._metric_at = time.monotonic()
        try:
            value = _metric(session)
        except StatementError:
            value, self._has_table = None, False
        self._has_metric = value is not None
        self._metric = value or 0.0

    def _follow(self, settings: _Settings) -> None:
        if not settings.prints_all or settings.log is None:
            self.close()
            off = "innodb_print_all_deadlocks is off, or not there in this version"
            self._why = off if not settings.prints_all else "its log is no file"
            return
        if self._log is not None and self._log.path == settings.log:
            return
        self.close()
        try:
            self._log = LogFollower(settings.log)
        except StallscopeError as error:
            self._why = str(error)
            return
        self._why = None
        self._reader = Reader("log", headless=True, sql=self._sql)

    def _count(self, value: float | None) -> bool:
        """Take the server's counter; return whether it changed."""
        before, self._last = self._last, value
        if value is None:
            self._first = None
            return False
        if self._first is None or before is None:
            self._first = value
            return False
        if value < before:  # innodb_monitor_reset_all
            self._lost += before - self._first
            self._first = 0.0
        return value != before

    def _from_log(self, *, moved: bool) -> list[Deadlock]:
        assert self._log is not None
        assert self._reader is not None
        now_ns = time.time_ns()
        now = _stamp(now_ns)
        lines = self._log.lines()
        found = self._reader.read(lines, now_ns, now)
        if lines or moved:
            self._log_said_at = time.monotonic()
        # No more lines will come of a report that was begun: its end has an unknown form.
        elif time.monotonic() - self._log_said_at >= QUIET_SECONDS:
            last = self._reader.end(now_ns, now)
            found += [] if last is None else [last]
        return found

    def _latest(self) -> list[Deadlock]:
        def ask(session: SqlSession) -> str:
            rows = session.select(STATUS)
            return str(rows[0][-1]) if rows else ""

        self._report_at = time.monotonic()
        text = self._connection.ask(ask, self._deadline, name=REPORT_QUESTION)
        self._owed = False
        now_ns = time.time_ns()
        found = of_status(text, now_ns, _stamp(now_ns), self._sql)
        return [] if found is None else [found]

    def _new(self, found: list[Deadlock], *, counted: bool = True) -> list[Deadlock]:
        new = []
        for deadlock in found:
            if (known := key(deadlock.transactions)) in self._known:
                continue
            self._known[known] = None
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
            self._seen += counted
            new.append(deadlock)
        return new

    def _sql(self, text: str) -> Statement:
        assert self._settings is not None
        return self._settings.normalize(text)


def _metric(session: SqlSession) -> float | None:
    for record in session.records(METRIC):
        if str(record.get("status", record.get("enabled"))) in ("enabled", "1"):
            return number(record.get("count"))
    return None


def _log_path(pid: int, log_error: str, datadir: str) -> str | None:
    """Return the path of the error log in our mount namespace; None where it is no file."""
    if log_error in ("", "stderr"):
        path = f"/proc/{pid}/fd/2"
        return path if _is_file(path) else None
    inside = os.path.normpath(os.path.join(datadir or "/", log_error))
    return f"/proc/{pid}/root{inside}" if inside.startswith("/") else None


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(asking.status(path).st_mode)
    except OSError:
        return False


def _stamp(now_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now_ns // 10**9))

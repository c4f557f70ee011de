# SPDX-License-Identifier: Apache-2.0
"""How many clients commit, and how much longer a statement takes after a pause: what a model of
commits needs to know of a server (stallscope.analyzers.durability)."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import msgspec

from stallscope.collectors import ownthreads
from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.processlist import BACKGROUND, SHOW
from stallscope.collectors.sql.protocol import Row, SqlSession

__all__ = ["PauseCost", "PauseMeter", "count_clients", "count_running", "own_thread"]

RUNNING = "SHOW GLOBAL STATUS LIKE 'Threads_running'"

WORK = "SELECT COUNT(*) FROM (SELECT 1 AS a UNION SELECT 2 UNION SELECT 3) AS work"
"""Goes through parser, optimizer, a temporary table in memory and the network, as statements of
clients do, and reads nothing of the server's data."""
_COLD = 2
_WARM = 20
_HOT = 60
_LONGEST = 0.05
"""Seconds: after longer pauses nothing gets colder."""
_ENDING = 0.0002
_SLEEP = "Sleep"


class PauseCost(msgspec.Struct, frozen=True):
    """Time of the same small statement."""

    after_pause_us: float
    at_once_us: float
    of_server: bool
    """CPU time of the server's thread; else the time until the answer."""
    share: float = 1.0
    """The pause that was meant, of the one that was made: a sleep of less than 0.2 ms takes
    longer."""

    @property
    def factor(self) -> float:
        """Return by how much longer it takes after a pause, at least 1. Caches get cold little by
        little: after half the pause, half of it."""
        if self.at_once_us <= 0:
            return 1.0
        return 1 + max(0.0, self.after_pause_us / self.at_once_us - 1) * self.share


def count_clients(session: SqlSession, seconds: float) -> int | None:
    """Return how many sessions of others had a statement in the last seconds; None: the account
    may not see them.

    A session that only reads counts too: which of them commit, no server says cheaply.
    """
    if not session.has_process:
        return None
    own = session.siblings | {session.facts.connection}
    count = 0

    def take(row: Row) -> None:
        nonlocal count
        command = str(row[4] or "")
        if row[0] in own or not command or command in BACKGROUND:
            return
        lasted = number(row[5]) or 0.0
        if command != _SLEEP or lasted < max(1.0, seconds):
            count += 1

    session.each(SHOW, take)
    return count


def count_running(session: SqlSession) -> int | None:
    """Return how many sessions of others have a statement now; None: the server does not say."""
    rows = session.select(RUNNING)
    value = number(rows[0][1]) if rows else None
    return None if value is None else max(0, int(value) - 1)


def own_thread(session: SqlSession, pid: int) -> int | None:
    """Return the thread of the process that serves this session; None: it is not known, or serves
    others too."""
    session.thread.ask()
    session.run(session.beat)
    thread = session.thread
    if thread.pool:
        return None
    tid = thread.tid
    if tid is None and thread.inode is not None:
        time.sleep(_LONGEST)  # by then it waits for us again
        tid = ownthreads.reading_thread(pid, thread.inode)
    return tid if tid is not None and ownthreads.has_thread(pid, tid) else None


class PauseMeter:
    """How much longer a small statement takes after a pause than at once, in samples of some
    milliseconds: what else runs on the machine changes both, and the CPU time of commits too."""

    def __init__(self, pid: int, tid: int | None) -> None:
        """``tid``: of own_thread()."""
        schedstat = None if tid is None else Path(f"/proc/{pid}/task/{tid}/schedstat")
        # A kernel without CONFIG_SCHED_INFO counts nothing.
        self._schedstat = schedstat if _run_ns(schedstat) else None
        self._cold: list[float] = []
        self._hot: list[float] = []
        self._shares: list[float] = []
        self._answered = 0.0

    def sample(self, session: SqlSession, pause: float) -> None:
        """Run the statement after pauses of so many seconds, and at once. Raises: SqlError."""
        pause = min(pause, _LONGEST)
        session.several(WORK, 1)
        self._answered = time.perf_counter()
        for _ in range(_COLD):
            time.sleep(pause)
            self._shares.append(min(1.0, pause / (time.perf_counter() - self._answered)))
            self._cold.append(self._time(session, 1))
        session.several(WORK, _WARM)
        if self._schedstat is not None:
            self._hot.append(self._time(session, _HOT))
        else:
            # The time until an answer has the client's part in both.
            self._hot += [self._time(session, 1) for _ in range(_HOT)]

    def _time(self, session: SqlSession, count: int) -> float:
        """Return the microseconds of a statement: on the CPU of the server's thread, or until the
        answer."""
        ran, begun = _run_ns(self._schedstat), time.perf_counter()
        session.several(WORK, count)
        self._answered = time.perf_counter()
        if self._schedstat is None:
            return (self._answered - begun) / count * 1e6
        # The thread runs a little longer than until its answer, up to where it waits again.
        time.sleep(_ENDING)
        return (_run_ns(self._schedstat) - ran) / count / 1e3

    def cost(self) -> PauseCost | None:
        """Return the usual times; None: there were no samples."""
        if not self._hot:
            return None
        return PauseCost(
            statistics.median(self._cold),
            # Other work can only make a statement slower that nothing else slows down, and a
            # server at full speed leaves the caches to none.
            statistics.quantiles(self._hot, n=4)[0] if len(self._hot) > 1 else self._hot[0],
            self._schedstat is not None,
            statistics.median(self._shares),
        )


def _run_ns(path: Path | None) -> int:
    if path is None:
        return 0
    try:
        return int(path.read_bytes()[:200].split()[0])
    except (OSError, ValueError, IndexError):
        return 0

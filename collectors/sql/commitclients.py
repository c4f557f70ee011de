# SPDX-License-Identifier: Apache-2.0
"""How many clients commit, and how much longer a statement takes after a pause: what a model of
commits needs to know of a server (stallscope.analyzers.durability)."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.processlist import BACKGROUND, SHOW
from stallscope.collectors.sql.protocol import Row, SqlSession

__all__ = ["PauseCost", "count_clients", "measure_pauses"]

WORK = "SELECT COUNT(*) FROM (SELECT 1 AS a UNION SELECT 2 UNION SELECT 3) AS work"
"""Goes through parser, optimizer, a temporary table in memory and the network, as statements of
clients do, and reads nothing of the server's data."""
_ROUNDS = 4
_COLD = 12
_HOT = 60
_PAUSES = (0.0002, 0.05)
"""Seconds: shorter pauses cannot be slept, after longer ones nothing gets colder."""
_SLEEP = "Sleep"


class PauseCost(msgspec.Struct, frozen=True):
    """Time of the same small statement."""

    after_pause_us: float
    at_once_us: float
    of_server: bool
    """CPU time of the server's thread; else the time until the answer."""

    @property
    def factor(self) -> float:
        """Return by how much longer it takes after a pause, at least 1."""
        return max(1.0, self.after_pause_us / self.at_once_us) if self.at_once_us > 0 else 1.0


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


def measure_pauses(session: SqlSession, pid: int, pause: float) -> PauseCost | None:
    """Run a small statement some hundred times, half a second or less in all: after pauses of so
    many seconds, and at once. None: the server refuses it, or nobody waits for the answer.
    """
    pause = min(max(pause, _PAUSES[0]), _PAUSES[1])
    session.thread.ask()
    try:
        session.select(WORK)
        schedstat = _schedstat(session, pid)
        cold, hot = _Sum(schedstat), _Sum(schedstat)
        for _ in range(_ROUNDS):
            with cold:
                for _ in range(_COLD):
                    time.sleep(pause)
                    cold.time(session)
            session.select(WORK)
            with hot:
                for _ in range(_HOT):
                    hot.time(session)
            if not session.wanted():
                return None
    except StatementError:
        return None
    if schedstat is not None and cold.cpu_ns > 0 and hot.cpu_ns > 0:
        return PauseCost(cold.cpu_ns / cold.count / 1e3, hot.cpu_ns / hot.count / 1e3, True)
    return PauseCost(cold.seconds / cold.count * 1e6, hot.seconds / hot.count * 1e6, False)


class _Sum:
    """Time of statements: until the answer, and on the CPU of the server's thread."""

    def __init__(self, schedstat: Path | None) -> None:
        self.count = 0
        self.seconds = 0.0
        self.cpu_ns = 0
        self._schedstat = schedstat
        self._begun = 0

    def __enter__(self) -> None:
        self._begun = _run_ns(self._schedstat)

    def __exit__(self, *_: object) -> None:
        self.cpu_ns += max(0, _run_ns(self._schedstat) - self._begun)

    def time(self, session: SqlSession) -> None:
        begun = time.perf_counter()
        session.select(WORK)
        self.seconds += time.perf_counter() - begun
        self.count += 1


def _schedstat(session: SqlSession, pid: int) -> Path | None:
    """Return where the kernel says how long the server's thread of this session ran."""
    thread = session.thread
    if thread.tid is None or thread.pool:
        return None
    task = Path(f"/proc/{pid}/task/{thread.tid}")
    try:
        status = (task / "status").read_bytes()[:8192]
    except OSError:
        return None
    # In a pid namespace the same number may be that of another thread here.
    inner = next((line for line in status.splitlines() if line.startswith(b"NSpid:")), b"")
    return task / "schedstat" if len(inner.split()) <= 2 else None


def _run_ns(path: Path | None) -> int:
    if path is None:
        return 0
    try:
        return int(path.read_bytes()[:200].split()[0])
    except (OSError, ValueError, IndexError):
        return 0

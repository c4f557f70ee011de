# SPDX-License-Identifier: Apache-2.0
"""Run collectors in the threads that they name, so that a slow one delays neither others nor the
loop."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stallscope.agent.events import Event, Put, QueryResult, ThreadFailed
from stallscope.agent.schedule import Schedule
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.base.threads import keep_running
from stallscope.collectors.collector import Collector
from stallscope.model.samples import Sample

__all__ = ["CollectorThreads"]

_CLOSE_SECONDS = 1.0
"""Seconds that collectors have to close files and connections: the agent has two for its end."""


class _Call(msgspec.Struct, eq=False):
    """A call for a collector's thread: a sample, or a query that is made once."""

    name: str
    deadline: float
    run: Callable[[], Any]
    is_sample: bool
    asked: float
    """CLOCK_MONOTONIC. A query's deadline counts from here, a sample's from its start."""
    begun: float | None = None
    given_up: bool = False

    @property
    def due(self) -> float:
        """When it is late; never before it has started."""
        since = self.begun if self.is_sample else self.asked
        return math.inf if since is None else since + self.deadline


class _Thread:
    """A thread, and its calls."""

    def __init__(self, name: str, put: Put) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.calls: list[_Call] = []
        """Guarded by the lock. The first one is running, if it has started."""
        self.dropped = 0
        self.late: Counter[str] = Counter()
        self._put = put
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        keep_running(f"collect-{name}", self._work, lambda what, why: put(ThreadFailed(what, why)))

    def add(self, call: _Call) -> None:
        with self.lock:
            self.calls.append(call)
        self._turns.put(True)

    def end(self) -> None:
        self._turns.put(False)

    def _work(self) -> None:
        with self.lock:  # after an error in this thread, its call is over
            if self.calls and self.calls[0].begun is not None:
                del self.calls[0]
        while self._turns.get():
            with self.lock:
                call = self.calls[0]
                skip = call.given_up
                call.begun = time.monotonic()
            result = None if skip else _result(call)
            with self.lock:
                self.calls.remove(call)
                in_time = _now() <= call.due
                if result is not None and in_time and not call.given_up:
                    self._put(result)
                    continue
                self.dropped += 1
            if not call.given_up:  # late, and `check` has not found it yet
                self.miss(call, call)

    def miss(self, call: _Call, blocker: _Call) -> None:
        """Count a call that has not returned in time; put an error in place of its result."""
        with self.lock:
            self.late[call.name] += 1
        waited = _now() - (call.begun or call.asked)
        why = f"no answer within {call.deadline:g} s"
        if blocker is not call:
            why = f"waits behind {blocker.name}, which does not answer"
        elif waited > 2 * call.deadline:
            why = f"no answer for {waited:.0f} s"
        if call.is_sample:
            clock = time.monotonic_ns()
            self._put(Sample(call.name, time.time_ns(), clock, elapsed_ms=waited * 1e3, error=why))
        else:
            self._put(QueryResult(call.name, error=why))


def _result(call: _Call) -> Event:
    """Make the call. What it raises is its result: an error of one collector ends nothing else."""
    wall, clock = time.time_ns(), time.monotonic_ns()
    try:
        value = call.run()
    except StallscopeError as error:
        why = one_line(str(error))
    except Exception as error:
        why = one_line(f"internal error: {type(error).__name__}: {error}")
    else:
        return value if call.is_sample else QueryResult(call.name, value)
    if not call.is_sample:
        return QueryResult(call.name, error=why)
    elapsed_ms = (time.monotonic_ns() - clock) / 1e6
    return Sample(call.name, wall, clock, elapsed_ms=elapsed_ms, error=why)


class CollectorThreads:
    """Threads that run collectors. Samples and results go to ``put``, as events for the loop. To be
    used from one thread.
    """

    def __init__(self, collectors: Sequence[Collector], put: Put) -> None:
        self.collectors = tuple(collectors)
        self._put = put
        self._threads: dict[str, _Thread] = {}
        self._schedule = Schedule()
        self._polled = 0.0
        """When the latest poll was, by CLOCK_MONOTONIC."""

    @property
    def late(self) -> Counter[str]:
        """How many calls were late, by name."""
        return sum((thread.late for thread in self._threads.values()), Counter())

    @property
    def dropped(self) -> int:
        """How many results came after their deadline."""
        return sum(thread.dropped for thread in self._threads.values())

    def poll(self, *, at_rest: bool = False) -> None:
        """Ask every collector that is due for a sample; one that is still busy counts as late."""
        self.check()
        self._polled = now = _now()
        for collector in self._schedule.due(self.collectors, now, at_rest=at_rest):
            self._ask(collector)

    def wake(self) -> None:
        """The rest ends between two polls: ask those that the latest poll did not ask."""
        for collector in self._schedule.due(self.collectors, _now(), at_rest=False):
            if not self._schedule.asked_since(collector.name, self._polled):
                self._ask(collector)

    def _ask(self, collector: Collector) -> None:
        thread = self._thread(collector.thread)
        with thread.lock:
            call = next((c for c in thread.calls if c.is_sample and c.name == collector.name), None)
            blocker = thread.calls[0] if thread.calls else None
        if call is None:
            now = _now()
            self._schedule.asked(collector.name, now)
            thread.add(_Call(collector.name, collector.deadline, collector.collect, True, now))
        elif call.given_up or (blocker is not None and blocker.given_up):
            thread.miss(call, blocker or call)
        # Otherwise it is still in time: the polls come faster than the answers.

    def query(self, thread: str, key: str, run: Callable[[], Any], deadline: float) -> None:
        """Call ``run`` once in a thread; a result or an error comes within ``deadline`` seconds.

        Where a call of this thread is already late, the result is that error.
        """
        found = self._thread(thread)
        with found.lock:
            waits = [c for c in found.calls if c.given_up]
        if waits:
            why = f"{waits[0].name} was asked {_now() - waits[0].asked:.1f} s ago: no answer yet"
            self._put(QueryResult(key, error=why))
            return
        found.add(_Call(key, deadline, run, False, _now()))

    def check(self) -> None:
        """Give up late calls, and report them."""
        now = _now()
        for thread in self._threads.values():
            with thread.lock:
                late = [c for c in thread.calls if not c.given_up and now > c.due]
                for call in late:
                    call.given_up = True
            for call in late:
                thread.miss(call, call)

    def excuse(self) -> None:
        """The agent did not run for a time: calls in flight have their deadline from now on."""
        now = _now()
        for thread in self._threads.values():
            with thread.lock:
                for call in thread.calls:
                    if not call.given_up:
                        call.asked = now
                        call.begun = None if call.begun is None else now

    def next_due(self) -> float:
        """Return when ``check`` may find something, by CLOCK_MONOTONIC in seconds."""
        due = math.inf
        for thread in self._threads.values():
            with thread.lock:
                for call in thread.calls:
                    if not call.given_up:
                        due = min(due, call.due)
        return due

    def close(self) -> None:
        """End the threads. A call that hangs is abandoned."""
        for thread in self._threads.values():
            thread.end()
        closer = threading.Thread(target=self._close_all, daemon=True)
        closer.start()
        closer.join(_CLOSE_SECONDS)

    def _close_all(self) -> None:
        for collector in self.collectors:
            try:
                collector.close()
            except Exception:  # noqa: S112  # nothing uses it after the end
                continue

    def _thread(self, name: str) -> _Thread:
        thread = self._threads.get(name)
        if thread is None:
            thread = self._threads[name] = _Thread(name, self._put)
        return thread


def _now() -> float:
    return time.monotonic()

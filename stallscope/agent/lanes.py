# SPDX-License-Identifier: Apache-2.0
"""Run collectors, a thread for each lane, so that none can delay another or the loop."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stallscope.agent.news import Answer, News, Put
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors.collector import Collector
from stallscope.samples import Sample

__all__ = ["Lanes"]

_EARLY = 0.9
"""Polls come early and late: a collector whose interval is so far gone looks again."""
_CLOSE_SECONDS = 1.0
"""What collectors have to let go of their files and connections at the end: the agent has two."""


class _Call(msgspec.Struct, eq=False):
    """Something to do in a lane: a collector's look, or a question that is asked once."""

    name: str
    deadline: float
    run: Callable[[], Any]
    is_look: bool
    asked: float
    """CLOCK_MONOTONIC. A question's time counts from here, a look's from where it begins."""
    begun: float | None = None
    given_up: bool = False

    @property
    def due(self) -> float:
        """When it is late: never, while its turn has not come."""
        since = self.begun if self.is_look else self.asked
        return math.inf if since is None else since + self.deadline


class _Lane:
    """A thread, and what it is to do."""

    def __init__(self, name: str, put: Put) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.calls: list[_Call] = []
        """Guarded by the lock. The first is the one that runs, once it has begun."""
        self.dropped = 0
        self.late: Counter[str] = Counter()
        self._put = put
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # Nobody waits for it at the end: a call that never returns must not keep the agent.
        threading.Thread(target=self._work, name=f"lane-{name}", daemon=True).start()

    def add(self, call: _Call) -> None:
        with self.lock:
            self.calls.append(call)
        self._turns.put(True)

    def end(self) -> None:
        self._turns.put(False)

    def _work(self) -> None:
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
            if not call.given_up:  # late, and nobody has looked yet
                self.miss(call, call)

    def miss(self, call: _Call, blocker: _Call) -> None:
        """Count a call that is not back in time; say so in the place of what it was to bring."""
        with self.lock:
            self.late[call.name] += 1
        waited = _now() - (call.begun or call.asked)
        why = f"no answer within {call.deadline:g} s"
        if blocker is not call:
            why = f"waits behind {blocker.name}, which does not answer"
        elif waited > 2 * call.deadline:
            why = f"no answer for {waited:.0f} s"
        if call.is_look:
            clock = time.monotonic_ns()
            self._put(Sample(call.name, time.time_ns(), clock, elapsed_ms=waited * 1e3, error=why))
        else:
            self._put(Answer(call.name, error=why))


def _result(call: _Call) -> News:
    """Make the call. Whatever it raises is its answer: an error in one collector ends nothing."""
    wall, clock = time.time_ns(), time.monotonic_ns()
    try:
        value = call.run()
    except StallscopeError as error:
        why = one_line(str(error))
    except Exception as error:
        why = one_line(f"internal error: {type(error).__name__}: {error}")
    else:
        return value if call.is_look else Answer(call.name, value)
    if not call.is_look:
        return Answer(call.name, error=why)
    elapsed_ms = (time.monotonic_ns() - clock) / 1e6
    return Sample(call.name, wall, clock, elapsed_ms=elapsed_ms, error=why)


class Lanes:
    """The collectors at work. Samples and answers go to ``put``, as news for the loop.

    Use it from one thread.
    """

    def __init__(self, collectors: Sequence[Collector], put: Put) -> None:
        self.collectors = tuple(collectors)
        self._put = put
        self._lanes: dict[str, _Lane] = {}
        self._looked: dict[str, float] = {}
        """Collector → when its latest look was asked for, by CLOCK_MONOTONIC."""

    @property
    def late(self) -> Counter[str]:
        """Calls that were not back in time, by name."""
        return sum((lane.late for lane in self._lanes.values()), Counter())

    @property
    def dropped(self) -> int:
        """How many answers came after they had been given up."""
        return sum(lane.dropped for lane in self._lanes.values())

    def poll(self) -> None:
        """Let every collector look whose interval is over; who is still at it counts as late."""
        self.check()
        for collector in filter(self._is_due, self.collectors):
            lane = self._lane(collector.lane)
            with lane.lock:
                call = next((c for c in lane.calls if c.is_look and c.name == collector.name), None)
                blocker = lane.calls[0] if lane.calls else None
            if call is None:
                self._looked[collector.name] = _now()
                look = _Call(collector.name, collector.deadline, collector.collect, True, _now())
                lane.add(look)
            elif call.given_up or (blocker is not None and blocker.given_up):
                lane.miss(call, blocker or call)
            # Else it is in time yet: the polls come faster than the answers.

    def _is_due(self, collector: Collector) -> bool:
        before = self._looked.get(collector.name)
        return before is None or _now() - before >= collector.interval * _EARLY

    def ask(self, lane: str, key: str, run: Callable[[], Any], deadline: float) -> None:
        """Call ``run`` once in a lane; its Answer comes within ``deadline`` seconds, or an error.

        Where the same question is still being worked on, the answer is that.
        """
        found = self._lane(lane)
        with found.lock:
            waits = [c for c in found.calls if c.given_up]
        if waits:
            why = f"{waits[0].name} was asked {_now() - waits[0].asked:.1f} s ago: no answer yet"
            self._put(Answer(key, error=why))
            return
        found.add(_Call(key, deadline, run, False, _now()))

    def check(self) -> None:
        """Give up what is late, and say so."""
        now = _now()
        for lane in self._lanes.values():
            with lane.lock:
                late = [c for c in lane.calls if not c.given_up and now > c.due]
                for call in late:
                    call.given_up = True
            for call in late:
                lane.miss(call, call)

    def next_due(self) -> float:
        """Return when ``check`` may find something, by CLOCK_MONOTONIC in seconds."""
        due = math.inf
        for lane in self._lanes.values():
            with lane.lock:
                for call in lane.calls:
                    if not call.given_up:
                        due = min(due, call.due)
        return due

    def close(self) -> None:
        """End the lanes. What hangs in one is left behind."""
        for lane in self._lanes.values():
            lane.end()
        closer = threading.Thread(target=self._close_all, daemon=True)
        closer.start()
        closer.join(_CLOSE_SECONDS)

    def _close_all(self) -> None:
        for collector in self.collectors:
            try:
                collector.close()
            except Exception:  # noqa: S112  # at the end, nobody is left to be told
                continue

    def _lane(self, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name, self._put)
        return lane


def _now() -> float:
    return time.monotonic()

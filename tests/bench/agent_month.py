# SPDX-License-Identifier: Apache-2.0
"""A month of an agent in minutes: its clock is compressed, and what it holds is measured each day.

The loop, its threads, its store, its alerts, their delivery and its outbox are the real ones; the
server, the captures and the verdicts are fakes. Time goes on only when no thread has work, so that
nothing depends on the speed of the machine. Run as a program, this is such an agent.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from stallscope.agent import gaps, loop
from stallscope.agent.clock import NS, Clock
from stallscope.agent.environment import Plan
from stallscope.agent.events import Event, EventQueue, Put, Signal
from stallscope.agent.loop import Agent
from stallscope.agent.target import Target
from stallscope.base.sending import SendError
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.notify.alert import Alert
from stallscope.notify.alert import Event as AlertEvent
from stallscope.notify.alerts import Alerts, Rules
from stallscope.notify.delivery import Delivery
from stallscope.notify.outbox import Outbox
from stallscope.notify.settings import Severity
from stallscope.store import Store
from tests.bench import progress
from tests.bench.footprint import footprint
from tests.bench.stats import BenchError, Row, Section
from tests.support.agents import CHECKOUT
from tests.support.cache import MEMORY
from tests.unit.agentfakes import FakeBackend, FakeEnvironment, FakeVerdicts, gone, this_server

__all__ = ["FULL", "QUICK", "Sizes", "section"]

DAY_NS = 86_400 * NS
PAUSE = 10.0
"""The longest step of the clock, which is the time from poll to poll."""
BREACH_NS = 40 * NS
"""How long a stall lasts."""
DOWN_EVERY_NS, DOWN_NS = 36 * 3600 * NS, 6 * 3600 * NS
"""One destination fails for so long, again and again."""
KEPT = 200
"""Incidents that the store may keep."""
REAL_SLEEP = time.sleep
REAL_SECONDS = 30.0
"""Of the machine, in which a thread has done its work."""
ALLOWED_BLOCKS = 1_000
"""Objects differ by as many from one end of a day to another: samples of the last minute. One that
is kept for each incident is ten times as many."""
ALLOWED_RSS_KB = 2048
"""What the allocator keeps beside objects, as they lie in memory after some days."""
LEAST_COUNT = 50
"""Objects of a line that are named."""
TRACED_DAYS = 2
"""At the end it is also seen where objects were made that are kept, which makes these days slow."""
TRIGGERS = """\
defaults = false
poll-interval = 10
captures-an-hour = 1000
retention-count = {kept}
disk-bytes-free = 0
disk-pct-free = 0
[burst]
captures = 2
interval = 0.03
[[trigger]]
name = "busy"
variable = "Threads_running"
threshold = 10
cycles = 1
clear-cycles = 1
interval = 0
sleep = 30
run-time = 5
"""


class Sizes(msgspec.Struct, frozen=True):
    """How much happens, evenly."""

    days: int = 30
    incidents: int = 10_000
    reloads: int = 1_000


FULL = Sizes()
QUICK = Sizes(days=6, incidents=2_000, reloads=200)


class Held(msgspec.Struct, frozen=True):
    """What the agent holds at the end of a day."""

    day: int
    blocks: int
    """Objects, as Python's allocator counts them."""
    rss_kb: int
    threads: int
    descriptors: int
    stalls: int
    """Alerts that the good destination got."""
    ends: int
    waiting: int
    """Notifications that the other one has not got."""
    grown: tuple[str, ...] = ()
    """Lines of the product whose objects are kept, of the last day."""


class CompressedClock(Clock):
    """It goes on with that of the machine, and by what is added."""

    def __init__(self) -> None:
        self._monotonic_ns, self._time_ns = time.monotonic_ns, time.time_ns
        self._ahead_ns = 0

    def install(self) -> None:
        """Let all of this process see it, but what waits in locks and queues."""
        time.monotonic_ns = self.now_ns
        time.time_ns = self.wall_ns
        time.monotonic = lambda: self.now_ns() / NS
        time.time = lambda: self.wall_ns() / NS

    def now_ns(self) -> int:
        return self._monotonic_ns() + self._ahead_ns

    def wall_ns(self) -> int:
        return self._time_ns() + self._ahead_ns

    def real_ns(self) -> int:
        return self._monotonic_ns()

    def sleep(self, seconds: float) -> None:
        self.add(seconds)

    def add(self, seconds: float) -> None:
        self._ahead_ns += round(max(0.0, seconds) * NS)


class Good:
    """A destination that takes all."""

    name = "good"
    updates = resolves = True
    repeat: float | None = 60.0
    least_firing = 0.0
    least_severity: Severity = "warning"

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def send(self, event: AlertEvent, alert: Alert) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1


class Failing(Good):
    """One that is down for hours."""

    name = "failing"

    def __init__(self, counts: dict[str, int], begun_ns: int) -> None:
        super().__init__(counts)
        self.begun_ns = begun_ns

    def send(self, event: AlertEvent, alert: Alert) -> None:
        if (time.monotonic_ns() - self.begun_ns) % DOWN_EVERY_NS < DOWN_NS:
            raise SendError(f"down: {alert.key}")
        super().send(event, alert)


class Course:
    """What happens when: stalls and reloads, evenly over all days; and a sample at each one's
    end."""

    def __init__(self, sizes: Sizes, begun_ns: int) -> None:
        whole = sizes.days * DAY_NS
        self._stall_ns, self._reload_ns = whole // sizes.incidents, whole // sizes.reloads
        self.begun_ns = begun_ns
        self.reload_due = begun_ns + self._reload_ns // 2
        self.day_due = begun_ns + DAY_NS
        self.end = begun_ns + whole

    def value(self, now_ns: int) -> float:
        """Return how many threads run."""
        in_turn = (now_ns - self.begun_ns) % self._stall_ns
        stalled = self._stall_ns // 2 <= in_turn < self._stall_ns // 2 + BREACH_NS
        return 100.0 if stalled else 0.0

    def reloads(self, now_ns: int) -> bool:
        """Return whether one is due."""
        if now_ns < self.reload_due:
            return False
        self.reload_due += self._reload_ns
        return True


class Events(EventQueue):
    """The agent's events; where there are none, and no thread has work, the time goes on."""

    def __init__(self, clock: CompressedClock, step: Callable[[], None]) -> None:
        super().__init__()
        self._clock = clock
        self._step = step
        self.settle: Callable[[], None] = lambda: None

    def take(self, seconds: float) -> list[Event]:
        if found := super().take(0):
            return found
        self.settle()
        if found := super().take(0):
            return found
        self._step()
        self._clock.add(min(seconds, PAUSE))
        return super().take(0)


class Month:
    """An agent, and its course."""

    def __init__(self, sizes: Sizes, home: Path, say: Callable[[Held], None]) -> None:
        self.sizes = sizes
        self.clock = CompressedClock()
        self.clock.install()
        self.say = say
        self.days = 0
        self.counts: dict[str, int] = {}
        self.others: dict[str, int] = {}
        self.file = home / "triggers.toml"
        self.file.write_text(TRIGGERS.format(kept=KEPT))
        self.course = Course(sizes, self.clock.now_ns())
        self.delivery = Delivery(
            Outbox(home / "outbox.sqlite"), self.receivers(), lambda: self.clock.now_ns() / NS
        )
        self.environment = Environment(self)
        store = Store.open(home / "store")
        spool = home / "store" / "spool"
        spool.mkdir(exist_ok=True)
        verdicts = FakeVerdicts()
        verdicts.asked = _Forgetful()
        self.agent = Agent(
            Plan(),
            self.environment.settings,
            Target(this_server(), gone),
            store,
            spool,
            self.environment,
            verdicts,
            self.clock,
        )
        self.events = Events(self.clock, self.step)
        self.events.settle = self.settle
        self._pass_on = self.agent.events
        self.agent.events = self.events
        self._first: tracemalloc.Snapshot | None = None

    def receivers(self) -> list[Good]:
        return [Good(self.counts), Failing(self.others, self.course.begun_ns)]

    def settings(self) -> AgentSettings:
        return triggerfile.load(self.file)

    def run(self) -> None:
        self.agent.run()

    def settle(self) -> None:
        """Wait until no other thread has work, by the clock of the machine."""
        while events := self._pass_on.take(0):  # threads were given this queue at the start
            for event in events:
                self.events.put(event)
        done = threading.Event()
        self.agent._writer.submit(done.set)
        if not done.wait(REAL_SECONDS):
            raise BenchError("the writer does not end its work")
        self._until(lambda: not any(t.calls for t in self.agent._threads._threads.values()))
        with self.delivery._changed:
            self.delivery._changed.notify_all()
        self._until(self._is_delivered)
        while events := self._pass_on.take(0):
            for event in events:
                self.events.put(event)

    def _is_delivered(self) -> bool:
        with self.delivery._changed:
            return not self.delivery._is_busy()

    def _until(self, condition: Callable[[], bool]) -> None:
        end = self.clock.real_ns() + round(REAL_SECONDS * NS)
        while not condition():
            if self.clock.real_ns() > end:
                raise BenchError("a thread of the agent does not end its work")
            REAL_SLEEP(0.0001)

    def step(self) -> None:
        """Do what is due."""
        now = self.clock.now_ns()
        self.environment.status.value = self.course.value(now)
        if self.course.reloads(now):
            self.events.put(Signal("reload"))
        if now >= self.course.day_due:
            self.course.day_due += DAY_NS
            self.days += 1
            self.say(self.held())
        if now >= self.course.end:
            self.events.put(Signal("stop"))

    def held(self) -> Held:
        gc.collect()
        grown: tuple[str, ...] = ()
        if self.days == self.sizes.days - TRACED_DAYS:
            tracemalloc.start()
        elif tracemalloc.is_tracing():
            snapshot = tracemalloc.take_snapshot()
            if self._first is None:
                self._first = snapshot
            else:
                compared = snapshot.compare_to(self._first, "lineno")
                most = [one for one in compared if one.count_diff >= LEAST_COUNT]
                grown = tuple(map(_line, most[:8]))
        of_us = footprint([os.getpid()])
        return Held(
            self.days,
            sys.getallocatedblocks(),
            of_us.rss_kb,
            of_us.threads,
            of_us.descriptors,
            self.counts.get("stall", 0),
            self.counts.get("end", 0),
            self.delivery.waiting().get("failing", 0),
            grown,
        )


def _line(kept: tracemalloc.StatisticDiff) -> str:
    frame = kept.traceback[0]
    name = frame.filename.removeprefix(f"{CHECKOUT}/")
    return f"{name}:{frame.lineno}: {kept.count_diff:+} objects, {kept.size_diff:+} bytes"


class Environment(FakeEnvironment):
    """One whose reload reads the file again, and makes the destinations again."""

    def __init__(self, month: Month) -> None:
        super().__init__(month.settings())
        self._month = month
        self.made_alerts = Alerts(month.delivery, Rules(2.0, 20, ""))
        # The fakes of unit tests keep all that they are given.
        self.said, self.events, self.lost = [], _Forgetful(), _Forgetful()
        self.stored_when_notified = _Forgetful()

    def backend(self, settings: AgentSettings, put: Put) -> FakeBackend:
        made = super().backend(settings, put)
        made.followed, made.adapted = _Forgetful(), _Forgetful()
        made.taken, made.layouts = _Forgetful(), _Forgetful()
        return made

    def reload(self) -> AgentSettings:
        self._month.delivery.configure(self._month.receivers())
        self.settings = self._month.settings()
        return self.settings


class _Forgetful(list[Any]):
    """A list that keeps nothing."""

    def append(self, _: object) -> None: ...

    def __iadd__(self, _: object) -> Self:  # type: ignore[misc]
        return self


def section(sizes: Sizes) -> Section:
    """Let a month pass; compare what is held on the last days with the first ones."""
    found: list[Held] = []
    for held in _lived(sizes):
        progress(f"day {held.day} of {sizes.days}")
        found.append(held)
    if len(found) < sizes.days:
        raise BenchError(f"only {len(found)} days")
    last = found[-1]
    rows = [
        Row(
            f"day {held.day}",
            {
                "objects": str(held.blocks),
                "RSS": f"{held.rss_kb / 1024:.1f} MiB",
                "threads": str(held.threads),
                "descriptors": str(held.descriptors),
                "alerts": f"{held.stalls}, ends {held.ends}",
                "waiting": str(held.waiting),
            },
        )
        for held in _shown(found)
    ]
    calm = [held for held in found if held.waiting == 0 and held.day <= sizes.days - TRACED_DAYS]
    before, after = calm[0], calm[-1]
    goals = (
        (
            f"objects {after.blocks - before.blocks:+} from day {before.day} to day {after.day}"
            f" ({ALLOWED_BLOCKS} allowed)",
            after.blocks - before.blocks <= ALLOWED_BLOCKS,
        ),
        (
            f"RSS {after.rss_kb - before.rss_kb:+} KiB ({ALLOWED_RSS_KB} allowed)",
            after.rss_kb - before.rss_kb <= ALLOWED_RSS_KB,
        ),
        (
            f"threads {after.threads - before.threads:+}, descriptors"
            f" {after.descriptors - before.descriptors:+} (0 allowed)",
            after.threads <= before.threads and after.descriptors <= before.descriptors,
        ),
        (
            f"{last.stalls} stalls alerted, {last.ends} ended, of {sizes.incidents}",
            last.stalls == last.ends == sizes.incidents,
        ),
    )
    return Section(
        "agent-month",
        f"{sizes.days} days of an agent: {sizes.incidents} incidents, {sizes.reloads} reloads",
        tuple(rows),
        checks=(
            f"of two destinations one is down for {DOWN_NS // (3600 * NS)} h in each"
            f" {DOWN_EVERY_NS // (3600 * NS)} h; the store keeps {KEPT} incidents",
            "compared: the first and the last day at whose end nothing waits for that destination",
        ),
        goals=goals,
        notes=tuple(f"kept of the last day: {line}" for line in last.grown),
    )


def _shown(found: Sequence[Held]) -> list[Held]:
    """Return the first and the last days, and some between."""
    step = max(1, len(found) // 8)
    return [held for held in found if held.day % step == 0 or held in (found[0], found[-1])]


def _lived(sizes: Sizes) -> Iterator[Held]:
    words = [sys.executable, "-P", "-m", "tests.bench.agent_month"]
    with subprocess.Popen(
        [*words, msgspec.json.encode(sizes).decode()],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield msgspec.json.decode(line, type=Held)
        finally:
            process.kill()


def main() -> None:
    """Live a month; print what is held at the end of each day."""
    sizes = msgspec.json.decode(sys.argv[1], type=Sizes)
    logging.disable(logging.CRITICAL)
    loop.LONGEST_PAUSE = PAUSE
    gaps.GAP_NS = round(3 * PAUSE * NS)  # else each step is one in which the agent did not run
    with tempfile.TemporaryDirectory(prefix="stallscope-month-", dir=MEMORY) as home:

        def say(held: Held) -> None:
            sys.stdout.buffer.write(msgspec.json.encode(held) + b"\n")
            sys.stdout.flush()

        # The server is this process, and one that listens is found at once.
        with (
            contextlib.suppress(BrokenPipeError),
            socket.socket(socket.AF_UNIX) as listening,
        ):
            listening.bind(f"{home}/s.sock")
            listening.listen()
            Month(sizes, Path(home), say).run()


if __name__ == "__main__":
    main()

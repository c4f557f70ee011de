# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: samples in, triggers, incidents out. docs/agent.md.

One thread. What can wait, waits elsewhere: collectors in lanes, the probe in a session, the disk in
the keeper, analysis in a child. All of it comes back through one queue.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from stallscope.agent.capturing import Capturing
from stallscope.agent.clock import NS, Clock
from stallscope.agent.crew import Camera
from stallscope.agent.incidents import OpenIncident
from stallscope.agent.keeper import Keeper
from stallscope.agent.lanes import Lanes
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.news import (
    Answer,
    Asked,
    Done,
    Inbox,
    News,
    ProbeState,
    Put,
    Shot,
    TargetEnded,
    Waits,
)
from stallscope.agent.ring import Ring
from stallscope.agent.sources import (
    SESSIONS_SECONDS,
    SQL_BASICS,
    SQL_LANE,
    Sources,
    constants,
)
from stallscope.agent.target import Target
from stallscope.agent.verdicts import Judge
from stallscope.base.errors import StallscopeError
from stallscope.collectors.processes import Server
from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.incident import Fired, Incident, TargetEntry
from stallscope.samples import Sample
from stallscope.store import Retention, Store
from stallscope.store.records import encode
from stallscope.waitlines import WaitLine

__all__ = ["Agent", "Eye", "Outside", "Plan"]

RING_SECONDS = 60.0
RING_BYTES = 6 << 20
WAITS_BYTES = 2 << 20
STOP_SECONDS = 1.2
"""What the disk has to take the last words; the whole stop is to be done in 2 s."""
METRICS_NS = 5 * NS
PRUNE_NS = 3600 * NS
LONGEST_PAUSE = 1.0
TEXTS_SECONDS = 6.0
"""For all texts of an incident together; each has a deadline of its own."""
_GRACE = 0.2
"""For the connection to say itself that the server is late."""
WIND_DOWN_NS = 20 * NS
"""What captures and verdicts have at the end of a pass."""
WIND_DOWN_PAUSE = 0.1


class Eye(Camera, Protocol):
    """What takes the captures, and perhaps sees waits."""

    @property
    def restarts(self) -> int: ...

    def start(self, pids: tuple[int, ...]) -> None: ...

    def follow(self, pids: tuple[int, ...]) -> None: ...

    def adapt(self, settings: AgentSettings) -> None: ...

    def close(self) -> None: ...


class Outside(Protocol):
    """The world around the loop."""

    def sources(self, server: Server, settings: AgentSettings) -> Sources: ...

    def eye(self, settings: AgentSettings, put: Put) -> Eye: ...

    def reload(self) -> AgentSettings:
        """Read the triggers file again. Raises: StallscopeError."""

    def tell(self, text: str) -> None:
        """Say something besides the results."""

    def event(self, name: str, incident: Incident | None, folder: Path | None) -> None:
        """Tell of ``start``, ``fire``, ``stall``, ``end`` and ``stop``."""

    def line(self, line: WaitLine) -> None:
        """Take a line of the wait programs: for metrics."""

    def metrics(self, text: bytes) -> None:
        """Publish the agent's own metrics; called in the keeper's thread."""

    def failures(self) -> int:
        """Return how many hooks have failed."""


class Plan(msgspec.Struct, frozen=True):
    """How long the agent runs, and what it does not do."""

    seconds: float | None = None
    """None: until it is told to stop."""
    looks: int | None = None
    """End after so many."""
    captures: bool = True
    """False: nothing is captured, whatever fires."""
    poll: float | None = None
    """Overrules that of the triggers file."""
    raw_sql: bool = False


class Agent:
    """Watches one server. Make it, then ``run``; ``inbox`` takes its news, signals among them."""

    def __init__(
        self,
        plan: Plan,
        settings: AgentSettings,
        target: Target,
        store: Store,
        spool: Path,
        outside: Outside,
        judge: Judge,
        clock: Clock | None = None,
    ) -> None:
        self.inbox = Inbox()
        self.metrics = AgentMetrics(_labels(target), (clock or Clock()).wall_ns() / NS)
        self.settings = settings
        self.engine = Engine(settings, constants())
        self._plan = plan
        self._target = target
        self._store = store
        self._outside = outside
        self._judge = judge
        self._clock = clock or Clock()
        self._tell = outside.tell
        self._keeper = Keeper(self.inbox.put, self._tell)
        self._eye = outside.eye(settings, self.inbox.put)
        self.capturing = Capturing(
            settings,
            store,
            spool,
            self._keeper,
            judge,
            self._eye,
            self,
            self._clock,
            self.metrics,
            self.inbox.put,
            self._tell,
            raw_sql=plan.raw_sql,
        )
        self.fired: list[Fired] = []
        """What would have been captured, where nothing is."""
        self._samples = Ring(RING_SECONDS, RING_BYTES)
        self._waits = Ring(RING_SECONDS, WAITS_BYTES)
        self._sources = Sources(())
        self._lanes = Lanes((), self.inbox.put)
        self._stopping = False
        self._deadlocks = 0
        """That the probe has seen find their victims."""
        self._failing: dict[str, str] = {}
        """Of collectors that bring nothing: why."""
        self._told_failing: set[str] = set()
        """Those of them that were told of."""
        self._lost_ns = 0
        """When the server had ended last."""
        self._next_look = 0
        self._metrics_due = 0
        self._prune_due = 0

    def run(self) -> None:
        """Watch until the plan says, or a signal. Raises: nothing that a server can cause."""
        self._begin()
        begun = self._next_look = self._clock.now_ns()
        end = None if self._plan.seconds is None else begun + round(self._plan.seconds * NS)
        try:
            while not self._stopping:
                now = self._clock.now_ns()
                if self._over(now, end):
                    self._wind_down()
                    break
                if now >= self._next_look:
                    interval = round((self._plan.poll or self.settings.poll) * NS)
                    # Looks that were missed are missed: they are not made up for.
                    steps = max(1, -((self._next_look - now) // interval))
                    self._next_look += interval * steps
                    self._look(now)
                self._take(self.inbox.get(self._pause(now)))
        finally:
            self._end()

    def ask_sessions(self, key: str) -> str | None:
        """Ask who is connected, in the SQL lane (Crew)."""
        if self._sources.sessions is None:
            return self._sources.why_no_sessions
        self._lanes.ask(SQL_LANE, key, self._sources.sessions, SESSIONS_SECONDS + _GRACE)
        return None

    def ask_texts(self, key: str) -> bool:
        """Ask for the server's own texts, in the SQL lane (Crew)."""
        if self._sources.texts is None:
            return False
        self._lanes.ask(SQL_LANE, key, self._sources.texts, TEXTS_SECONDS)
        return True

    def before(self, incident: OpenIncident) -> None:
        """Give an incident the minute before it (Crew)."""
        since = self._clock.now_ns() - round(RING_SECONDS * NS)
        incident.add_samples(self._samples.since(since))
        incident.add_waits(self._waits.since(since))

    def target(self) -> TargetEntry:
        """Return the server as it is (Crew)."""
        return self._target.entry()

    def announce(self, incident: Incident, folder: Path, event: str) -> None:
        """Tell of an incident, and keep the store within its limits after its end (Crew)."""
        self._outside.event(event, incident, folder)
        if event == "end":
            self._prune_due = 0

    def _begin(self) -> None:
        for name in self._store.recover():
            self._tell(f"incident {name} was left open by an agent that ended: interrupted")
        self._adopt()
        self._eye.start(self._target.server.pids)
        self._outside.event("start", None, None)

    def _adopt(self) -> None:
        """Ask the server process that runs now."""
        self._let_go()
        self._sources = self._outside.sources(self._target.server, self.settings)
        self._lanes = Lanes(self._sources.collectors, self.inbox.put)

    def _let_go(self) -> None:
        self.metrics.late += self._lanes.late
        self._sources.close()
        self._lanes.close()
        self._sources, self._lanes = Sources(()), Lanes((), self.inbox.put)

    def _over(self, now: int, end: int | None) -> bool:
        looks = self._plan.looks
        return (end is not None and now >= end) or (
            looks is not None and self.metrics.polls > looks
        )

    def _pause(self, now: int) -> float:
        due = min(self._next_look, self.capturing.next_due())
        return min((due - now) / NS, self._lanes.next_due() - now / NS, LONGEST_PAUSE)

    def _look(self, now: int) -> None:
        self.metrics.polls += 1
        self._look_after_server(now)
        self.metrics.up["server"] = self._target.running
        if self._target.running:
            self._lanes.poll()
        if now >= self._metrics_due:
            self._metrics_due = now + METRICS_NS
            self._publish()
        if now >= self._prune_due:
            self._prune_due = now + PRUNE_NS
            self._prune()

    def _look_after_server(self, now: int) -> None:
        match self._target.look(now):
            case "ended":
                self._lost_ns = self._clock.now_ns()
                self._close_what_is_left()
                self._let_go()
            case "back":
                self._adopt()
                self._eye.follow(self._target.server.pids)
            case "grown":
                self._adopt()

    def _close_what_is_left(self) -> None:
        """Let nothing of a process that has ended go on with its next one."""
        self.engine.restarted()
        self.capturing.server_ended()

    def _take(self, news: News | None) -> None:
        """Take what came; then do what is due."""
        match news:
            case Sample():
                self._sample(news)
            case Waits():
                self._wait_line(news)
            case Shot():
                self._shot(news)
            case Answer():
                self.capturing.answer(news)
            case Done():
                news.then()
            case ProbeState():
                self._probe_state(news)
            case TargetEnded():
                # It may have been seen before, and the server be back by now.
                self._look_after_server(self._clock.now_ns())
            case Asked("stop"):
                self._stopping = True
            case Asked():
                self._reload()
        if self.capturing.open is not None and not self._target.running:
            self._close_what_is_left()  # captures of its last waits come after its end
        self._lanes.check()
        for name in self.engine.given_up():
            self._given_up(name)
        now, engine = self._clock.now_ns(), self.engine
        self.capturing.tick(now, bool(engine.breached), engine.over_ns)

    def _sample(self, sample: Sample) -> None:
        if sample.clock_ns < self._lost_ns:
            return  # of the process that has ended
        for fired in self.engine.feed(sample):
            self._fire(fired, sample.clock_ns)
        line = encode(sample)
        self._samples.add(sample.clock_ns, line)
        if self.capturing.open is not None:
            self.capturing.open.add_samples([line])
        self._note_health(sample)

    def _given_up(self, trigger: str) -> None:
        why = f"{trigger}: what it looks at is known no more; what it saw counts as over"
        self._tell(why)
        if self.capturing.open is not None:
            self.capturing.open.note("trigger-unknown", why)

    def _fire(self, fired: Fired, breach_ns: int) -> None:
        if self._plan.captures:
            self.capturing.fire(fired, breach_ns)
        else:
            self.fired.append(fired)
            self._tell(f"{fired.trigger} would fire: {fired.why}")

    def _note_health(self, sample: Sample) -> None:
        """Count it; say once that a collector brings nothing, and that it does again.

        What several fail for, such as a password that is refused, is said of the first alone.
        """
        source, error = sample.source, sample.error
        if error is None:
            self.metrics.samples[source] += 1
            self._failing.pop(source, None)
            if source in self._told_failing:
                self._told_failing.remove(source)
                self._tell(f"{source}: it answers again")
            return
        self.metrics.errors[source] += 1
        known = source in self._failing or _cause(error) in map(_cause, self._failing.values())
        if not known:
            self._told_failing.add(source)
            self._tell(f"{source}: {error}")
        self._failing[source] = error

    def _wait_line(self, waits: Waits) -> None:
        wall = self._clock.wall_ns()
        for fired in self.engine.feed_waits(waits.line, wall, waits.clock_ns):
            self._fire(fired, waits.clock_ns)
        self._waits.add(waits.clock_ns, waits.data)
        if self.capturing.open is not None:
            self.capturing.open.add_waits([waits.data])
        self._outside.line(waits.line)
        deadlocks = sum(
            sum(hits.values())
            for name, hits in waits.line.server.items()
            if "deadlock" in name.lower()
        )
        if deadlocks != self._deadlocks:
            self._deadlocks = deadlocks
            self._sources.cue()

    def _shot(self, shot: Shot) -> None:
        if shot.key is not None:
            self.capturing.shot(shot)
            return
        fired = None
        late_ns = round(((shot.wait and shot.wait.finished_ms) or 0.0) * 1e6)
        breach_ns = shot.done_ns - late_ns
        if shot.wait is not None:
            wall = self._clock.wall_ns() - late_ns
            fired = self.engine.feed_wait(shot.wait, wall, shot.done_ns)
        if fired is not None and self._plan.captures:
            self.capturing.fire(fired, breach_ns, shot)
            return
        if fired is not None:
            self._fire(fired, breach_ns)
        self.capturing.stray(shot)

    def _probe_state(self, state: ProbeState) -> None:
        if state.ready and not self.metrics.up.get("probe"):
            server = self._target.server
            waits = ", and sees its waits" if state.sees_waits else ""
            self._tell(f"ready to capture {server.name} (pid {server.main.pid}){waits}")
        self.metrics.up["probe"] = state.ready
        if state.ready:
            self.capturing.camera_ready()

    def _reload(self) -> None:
        try:
            settings = self._outside.reload()
        except StallscopeError as error:
            self._tell(f"{error}; what was read before holds on")
            return
        self.settings = self.capturing.settings = settings
        self._next_look = self._clock.now_ns()
        learnt = self.engine.learnt()
        self.engine = Engine(settings, constants())
        self.engine.recall(learnt)
        self._eye.adapt(settings)
        if self._target.running:
            self._adopt()
        self._tell(f"the triggers were read again: {len(settings.triggers)}")

    def _publish(self) -> None:
        counts = self.metrics
        counts.ring_bytes = self._samples.bytes + self._waits.bytes
        asked = SQL_BASICS & {collector.name for collector in self._lanes.collectors}
        counts.up["sql"] = bool(asked) and not asked & self._failing.keys()
        counts.failures["hook"] = self._outside.failures()
        counts.failures["store"] = self._keeper.failed
        counts.failures["probe"] = self._eye.restarts
        late, counts.late = counts.late, counts.late + self._lanes.late
        text = counts.text()
        counts.late = late
        self._keeper.do(lambda: self._outside.metrics(text), needed=False)

    def _prune(self) -> None:
        settings = self.settings
        keep = Retention(
            settings.retention_time or None,
            settings.retention_count or None,
            settings.retention_size or None,
        )

        def prune() -> None:
            with contextlib.suppress(StallscopeError):  # another agent does it
                self._store.prune(keep)

        self._keeper.do(prune, needed=False)

    def _wind_down(self) -> None:
        """Let what was begun come to its end, for a while."""
        end = self._clock.now_ns() + WIND_DOWN_NS
        # Where the probe is not ready yet, the captures of the burst are still to be taken.
        self._take_while(lambda: self.capturing.has_burst(self.metrics.up.get("probe", False)), end)
        self.capturing.close(interrupted=False)
        self._take_while(lambda: self.capturing.busy, end)

    def _take_while(self, condition: Callable[[], bool], end: int) -> None:
        while condition() and not self._stopping and self._clock.now_ns() < end:
            self._take(self.inbox.get(WIND_DOWN_PAUSE))

    def _end(self) -> None:
        """Write the last words, and let everything go; what hangs is left behind."""
        self.capturing.close(interrupted=True)
        self._judge.close()
        closing = threading.Thread(target=self._eye.close, daemon=True)
        closing.start()
        self._publish()
        if not self._keeper.close(STOP_SECONDS):
            self._tell("the disk did not take the last words in time")
        while (news := self.inbox.get(0)) is not None:
            if isinstance(news, Done):
                news.then()
        self._let_go()
        self._target.close()
        # It has had that time already; what it still takes would come into a spool that is gone.
        closing.join(STOP_SECONDS)
        self._outside.event("stop", None, None)


def _cause(error: str) -> str:
    """Return why a collector failed, without when it is tried again."""
    return error.partition("; tried again in ")[0]


def _labels(target: Target) -> dict[str, str]:
    """Tell this server from others on the host, after a restart too."""
    labels = {"server": target.server.name}
    if target.server.datadir:
        labels["datadir"] = target.server.datadir
    return labels

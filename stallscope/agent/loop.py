# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: samples in, triggers, incidents out. docs/agent.md.

It is one thread that never blocks. Collectors, the probe, the disk and the analysis each have their
own thread or process. All results come back through one queue.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from stallscope.agent import ownevents
from stallscope.agent.clock import NS, Clock
from stallscope.agent.collecting import CollectorThreads
from stallscope.agent.environment import Environment, Kept, Plan
from stallscope.agent.events import (
    Callback,
    CaptureResult,
    Event,
    EventQueue,
    ProbeStatus,
    QueryResult,
    Signal,
    TargetEnded,
    ThreadFailed,
    WaitsReceived,
)
from stallscope.agent.gaps import Gaps
from stallscope.agent.health import CollectorHealth
from stallscope.agent.history import History
from stallscope.agent.incidents import Incidents
from stallscope.agent.liveness import SLOW_DISK_SECONDS, AgentState, Liveness
from stallscope.agent.messages import (
    BackendReady,
    DiskChecked,
    IncidentEvent,
    Moment,
    PassEnded,
    Polled,
    ServerEnded,
    Shutdown,
    TriggerFired,
)
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.rest import ServerRest
from stallscope.agent.runner import CommandRunner
from stallscope.agent.shipping import FleetNews, close_both
from stallscope.agent.sight import HEARTBEAT, Sight
from stallscope.agent.sources import (
    SESSIONS_SECONDS,
    SQL_BASICS,
    SQL_THREAD,
    Sources,
    constants,
)
from stallscope.agent.target import Target
from stallscope.agent.threadwatch import ThreadWatch
from stallscope.agent.upkeep import Upkeep
from stallscope.agent.verdict_process.client import VerdictProcess
from stallscope.agent.writer import Writer
from stallscope.base.errors import StallscopeError
from stallscope.base.times import local
from stallscope.collectors.processes import Server
from stallscope.collectors.serverlabels import labels_of
from stallscope.collectors.triggers.engine import CONFIRM, Engine
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.model.incident import EVENTS, SERVER_ENDED, Fired, Incident, TargetEntry
from stallscope.model.samples import Sample
from stallscope.store import Store, read_incident
from stallscope.store.records import encode

__all__ = ["Agent"]

_log = logging.getLogger(__name__)

HISTORY_SECONDS = 60.0
SAMPLES_BYTES = 6 << 20
WAITS_BYTES = 2 << 20
STOP_SECONDS = 1.2
"""How long the end waits for the writer; the whole stop must take less than 2 s."""
METRICS_NS = 5 * NS
FIRST_DISK_NS = NS
"""How long the start waits for what the disk holds: a trigger may fire at the first poll."""
LONGEST_PAUSE = 1.0
GATHER_SECONDS = 0.01
"""At rest, the pause after a poll in which collectors answer: the loop wakes up once for them."""
TEXTS_SECONDS = 6.0
"""For all texts of an incident together; each one also has a deadline."""
_GRACE = 0.2
"""Added so that the connection can report a late server itself."""
LONG_WAIT_MS = 250.0
"""A wait in flight that is so long is a sign that the server is not at rest."""
OWED_POLLS = 8
"""So many more polls are made where the server owes an answer at the last one."""
HURRY_NS = 3 * NS // 2
"""So long after a line with such a wait a breach is confirmed soon; a line comes each second."""
WIND_DOWN_NS = 20 * NS
"""How long the end of a pass waits for captures and verdicts."""
WIND_DOWN_PAUSE = 0.1
HOW_UNKNOWN = "how is not known"
HOOKED = ("fire", "stall", "end")
"""Events of an incident that are printed, or have a hook."""
DELIVERY_SECONDS = 0.4
"""How long a stop waits for notifications and shipping; they are in outbox and spool."""
PASS_DELIVERY_SECONDS = 5.0
"""The same at the end of a pass, which nobody waits for."""


class Agent:
    """Watches one server. Create it, then call ``run``; ``events`` takes events and signals."""

    def __init__(
        self,
        plan: Plan,
        settings: AgentSettings,
        target: Target,
        store: Store,
        spool: Path,
        environment: Environment,
        verdicts: VerdictProcess,
        clock: Clock | None = None,
    ) -> None:
        self.events = EventQueue()
        self._writer = Writer(self.events.put)
        self.threads = ThreadWatch(store.dest, self._writer)
        started = (clock or Clock()).wall_ns() / NS
        self.metrics = AgentMetrics(labels_of([target.server]), started, self.threads.metrics)
        self.settings = settings
        self.engine = Engine(settings, constants())
        self._plan = plan
        self._target = target
        self._store = store
        self._environment = environment
        self._verdicts = verdicts
        self._clock = clock or Clock()
        self._alerts = environment.alerts()
        self._fleet = FleetNews(environment.shipper(), target, self.metrics)
        self._backend = environment.backend(settings, self.events.put)
        self.incidents = Incidents(settings, lambda: self._backend.takes_bursts)
        self._runner = CommandRunner(
            self,
            store,
            spool,
            self._writer,
            verdicts,
            self._backend,
            self.metrics,
            self.events.put,
            self._fleet.shipper.take,
            raw_sql=plan.raw_sql,
        )
        self.fired: list[Fired] = []
        """How many captures were skipped because the plan allows none."""
        self._samples = History(HISTORY_SECONDS, SAMPLES_BYTES)
        self._waits = History(HISTORY_SECONDS, WAITS_BYTES)
        self._sources = Sources(())
        self._threads = CollectorThreads((), self.events.put)
        self._stopping = False
        self._gaps = Gaps()
        self._deadlocks = 0
        """Deadlocks of which the probe saw the choice of a victim."""
        self._rest = ServerRest()
        self._resting = False
        """At the latest poll."""
        self._health = CollectorHealth(self.metrics)
        self.sight = Sight(self._interval_ns / NS)
        self.liveness = Liveness(target.server, self._clock.now_ns())
        """What other threads may see of this one."""
        self._lost_ns = 0
        """When the server last ended."""
        self._next_poll = 0
        self._captured_ns: int | None = None
        """Wall clock of the latest capture."""
        self._polled_ns = 0
        """When the collectors were asked last."""
        self._long_wait_ns: int | None = None
        """When a wait was seen that is long."""
        self._has_news = False
        """Since the latest poll a wait became long, the first one for a time."""
        self._metrics_due = 0
        self._upkeep = Upkeep(store, self._writer, self._disk_checked, self._recovered)
        self.begun = False
        """Whether it has come to its first poll."""
        self.on_begun: Callable[[], None] = lambda: None
        """Called once, before the first poll."""
        self.kept = Kept()
        self._was_blind = False

    @property
    def server(self) -> Server:
        """Return the server as it was seen last."""
        return self._target.server

    @property
    def stalls(self) -> int:
        """Return how many stalls were named, or go on."""
        going_on = [alert for alert in self._alerts.open if not alert.incident.is_event]
        return max(self.incidents.stalls, len(going_on))

    def run(self) -> None:
        """Watch until the plan's end or a signal. No server can make it raise."""
        try:
            self._begin()
        except BaseException:
            self.abandon()
            raise
        self.begun = True
        self.on_begun()
        begun = self._next_poll = self._clock.now_ns()
        end = None if self._plan.seconds is None else begun + round(self._plan.seconds * NS)
        try:
            while not self._stopping:
                now = self._clock.now_ns()
                if self._over(now, end):
                    self._finish()
                    break
                if now >= self._next_poll:
                    interval = self._interval_ns
                    # Missed polls are skipped.
                    steps = max(1, -((self._next_poll - now) // interval))
                    self._next_poll += interval * steps
                    self._poll(now)
                    if self._resting:
                        self._clock.sleep(GATHER_SECONDS)
                self._take(self.events.take(self._pause(now)))
        finally:
            self._end()

    def feed(self, event: IncidentEvent) -> None:
        """Let the incidents handle an event, and execute their commands."""
        now = Moment(self._clock.now_ns(), self._clock.wall_ns())
        for command in self.incidents.handle(event, now):
            self._runner.run(command)

    def fetch_sessions(self, key: str) -> str | None:
        """Query the sessions, in the thread for SQL (runner.Loop)."""
        if self._sources.sessions is None:
            return self._sources.why_no_sessions
        self._threads.query(SQL_THREAD, key, self._sources.sessions, SESSIONS_SECONDS + _GRACE)
        return None

    def fetch_texts(self, key: str) -> bool:
        """Query the server's own texts, in the thread for SQL (runner.Loop)."""
        if self._sources.texts is None:
            return False
        self._threads.query(SQL_THREAD, key, self._sources.texts, TEXTS_SECONDS)
        return True

    def history(self) -> tuple[Iterable[bytes], Iterable[bytes]]:
        """Return the last minute (runner.Loop)."""
        since = self._clock.now_ns() - round(HISTORY_SECONDS * NS)
        return self._samples.since(since), self._waits.since(since)

    def notify(self, event: str, number: int, incident: Incident, folder: Path | None) -> None:
        """Notify of an incident, and keep the store within its limits after its end."""
        try:
            self._alerts.take(event, number, incident, folder)
            if event in HOOKED:
                self._environment.notify(event, incident, folder)
        except Exception as error:
            _log.error("cannot notify of %s: %s: %s", event, type(error).__name__, error)
        if event == "end":
            self._upkeep.prune_soon()

    def abandon(self) -> None:
        """End the threads of an agent that has not begun."""
        self._backend.close()
        self._close_sources()
        close_both(self._alerts.delivery, self._fleet.shipper, 0.0)
        self._writer.close(STOP_SECONDS)
        self._target.close()

    def problems(self) -> list[str]:
        """Return what is wrong with the agent's own threads; from any thread."""
        busy = self._writer.busy_seconds
        if busy < SLOW_DISK_SECONDS:
            return []
        return [f"the store's disk has not answered for {busy:.0f} s"]

    def _begin(self) -> None:
        if self._plan.captures:  # a dry run may be beside the agent
            self._alerts.delivery.start()
            self._fleet.begin()
        self._adopt()
        self._backend.start(self._target.server.pids)
        self._environment.notify("start", None, None)
        now = self._clock.now_ns()
        self._upkeep.begin(self.settings, now)
        # A stall that goes on has an alert already, where an agent was killed in it.
        known = self._alerts.delivery.loaded
        self._take_while(
            lambda: not (self._upkeep.knows_disk and (known.is_set() or not self._plan.captures)),
            now + FIRST_DISK_NS,
        )
        was, target = self.kept.was, self._target.entry()
        is_same = was is None or (was.pid, was.start_time) == (target.pid, target.start_time)
        if was is not None and not is_same and self._plan.captures and self._notes_ends:
            fired = Fired(SERVER_ENDED, "", self._clock.wall_ns())
            self._event(fired, f"it ended while no agent watched it (pid {was.pid})", True, was)

    @property
    def _notes_ends(self) -> bool:
        return any(trigger.name == SERVER_ENDED for trigger in self.settings.triggers)

    def _recovered(self, names: Sequence[str]) -> None:
        """Notify of incidents that nobody may have been notified of, and ship them, unless the
        server that they were of runs, and has an agent of its own."""
        for name in names:
            folder = self._store.incidents / name
            with contextlib.suppress(StallscopeError):
                incident = read_incident(folder).incident
                if not self._target.is_another(incident.target):
                    self._alerts.recovered(incident, folder)
        self._fleet.recover()

    def _adopt(self) -> None:
        """Start the collectors of the current server process."""
        self._close_sources()
        self._rest = ServerRest()
        self._backend.use_layout("")  # that of the process before
        self._sources = self._environment.sources(
            self._target.server, self.settings, self._backend.use_layout
        )
        self._threads = CollectorThreads(self._sources.collectors, self.events.put)
        asks = any(collector.name == HEARTBEAT for collector in self._sources.collectors)
        entry = self._target.entry()
        self._writer.submit(lambda: self.kept.on_server(entry), needed=False)
        self.sight.use(sql=asks, now_ns=self._clock.now_ns(), wall_ns=self._clock.wall_ns())

    def _close_sources(self) -> None:
        self.metrics.late += self._threads.late
        self._sources.close()
        self._threads.close()
        self._sources, self._threads = Sources(()), CollectorThreads((), self.events.put)

    def _over(self, now: int, end: int | None) -> bool:
        polls, made = self._plan.polls, self.metrics.polls
        if end is not None and now >= end:
            return True
        if polls is None or made <= polls:
            return False
        # Whether a server that owes an answer hangs is known some polls later.
        return self.engine.breached != () or not self.sight.owes or made > polls + OWED_POLLS

    def _pause(self, now: int) -> float:
        due = min(self._next_poll, self.incidents.next_ns)
        return min((due - now) / NS, self._threads.next_due() - now / NS, LONGEST_PAUSE)

    def _poll(self, now: int) -> None:
        self.metrics.polls += 1
        self._polled_ns = now
        self._has_news = False
        self._poll_server(now)
        self._look()
        self.metrics.up["server"] = self._target.running
        if self._target.running:
            self._resting = self._at_rest(now)
            self._sources.set_rest(self._resting)
            self._threads.poll(at_rest=self._resting)
        self.liveness.state = self._state()
        if now >= self._metrics_due:
            self._metrics_due = now + METRICS_NS
            self._publish()
            self.threads.flush(self._target.server)
        self._upkeep.prune(self.settings, now)

    def _look(self) -> None:
        """Feed the triggers what the agent itself knows: whether the server runs, and what it
        cannot see."""
        now, wall = self._clock.now_ns(), self._clock.wall_ns()
        own = self.sight.own(now, wall, running=self._target.running)
        if self._was_blind != (blind := self.sight.blind(now) is not None):
            self._was_blind = blind
            self._writer.submit(self.kept.on_blind, needed=False)
        for fired in self.engine.feed(own):
            self._fire(fired, now)

    def _at_rest(self, now: int) -> bool:
        """Return whether nothing shows that the server's threads wait."""
        calm = self.engine.calm and self.incidents.open is None and not self._alerts.open
        return calm and not self.sight.owes and self._rest.at_rest(now)

    def _poll_server(self, now: int) -> None:
        match self._target.poll(now):
            case "ended":
                self._lost_ns = self._clock.now_ns()
                self._close_what_is_left()
                self._close_sources()
                self._look()
            case "restarted":
                self._adopt()
                self._backend.follow(self._target.server.pids)
            case "reachable":
                self._adopt()

    def _close_what_is_left(self) -> None:
        """Reset all state that belongs to a process which has ended."""
        self.engine.restarted()
        self.threads.flush(self._target.server)
        self.threads.ended()
        self.feed(ServerEnded(self._target.ending))

    def _take(self, events: Iterable[Event]) -> None:
        """Handle events; then do the steps that are due."""
        self.liveness.beat(self._clock.now_ns())
        self._look_for_gap()
        for event in events:
            self._handle(event)
        if self.incidents.open is not None and not self._target.running:
            self._close_what_is_left()  # captures of its last waits arrive after its end
        self._threads.check()
        now, engine = self._clock.now_ns(), self.engine
        self._upkeep.check_disk(self.settings, now)
        self._runner.flush(self.incidents.open, now)
        self.feed(Polled(bool(engine.breached), engine.over_ns))
        self._judge(now)
        if self._resting and self._target.running and not self._at_rest(now):
            self._resting = False
            self._polled_ns = now
            self._threads.wake()
        if self._hurries(now) and (self._has_news or self.engine.counting):
            confirm = self._polled_ns + round(CONFIRM * self._interval_ns)
            self._next_poll = min(self._next_poll, max(now, confirm))

    def _look_for_gap(self) -> None:
        """Where the agent did not run for a time, excuse what looks late, and ask again."""
        now = self._clock.now_ns()
        gap_ns = self._gaps.look(now, self._clock.wall_ns())
        if gap_ns:
            _log.warning(
                "the agent did not run for %.1f s; what was asked before is asked again",
                gap_ns / NS,
            )
            self._threads.excuse()
            self._next_poll = min(self._next_poll, now)

    def _hurries(self, now: int) -> bool:
        """Return whether a wait is long: what it is may be over before the next poll."""
        seen = self._long_wait_ns
        return seen is not None and now - seen < HURRY_NS and self._plan.polls is None

    @property
    def _interval_ns(self) -> int:
        return round((self._plan.poll_interval or self.settings.poll_interval) * NS)

    def _handle(self, event: Event) -> None:
        match event:
            case Sample():
                self._sample(event)
            case WaitsReceived():
                self._wait_line(event)
            case CaptureResult():
                self._captured(event)
            case QueryResult():
                self.feed(event)
            case Callback():
                event.then()
            case ProbeStatus():
                self._probe_state(event)
            case TargetEnded():
                # It may have been seen already, and the server may be back by now.
                self._poll_server(self._clock.now_ns())
            case ThreadFailed():
                self.metrics.failures["thread"] += 1
            case Signal("stop"):
                self._stopping = True
            case Signal():
                self._reload()

    def _sample(self, sample: Sample) -> None:
        if sample.clock_ns < self._lost_ns:
            return  # of the process that has ended
        if self._gaps.is_stale(sample):
            return  # the agent was stopped since
        sample = self._gaps.checked(sample)
        self._rest.take(sample, incident=self.incidents.open is not None)
        self.sight.sample(sample)
        for fired in self.engine.feed(sample, hurried=self._hurries(sample.clock_ns)):
            self._fire(fired, sample.clock_ns)
        line = encode(sample)
        self._samples.add(sample.clock_ns, line)
        self._runner.record(self.incidents.open, (line,), ())
        self._health.note(sample)
        self.metrics.status.take(sample)

    def _judge(self, now: int) -> None:
        """End the alerts that are over."""
        if not self._plan.captures:
            return
        statuses = self.engine.statuses(now)
        for alert in self._alerts.judge(statuses, now, self._clock.wall_ns()):
            if alert.incident.is_event:
                folder = None if alert.path is None else Path(alert.path)
                self._environment.notify("end", alert.incident, folder)

    def _fire(self, fired: Fired, breach_ns: int, capture: CaptureResult | None = None) -> None:
        if not self._plan.captures:
            self.fired.append(fired)
            _log.info("%s would fire: %s", fired.trigger, fired.why)
            return
        self.metrics.fired[fired.trigger] += 1
        if fired.trigger in EVENTS:
            self._event(fired, *self._why(fired), self._target.entry())
            return
        goes_on = self._alerts.has(fired.trigger)
        self.feed(TriggerFired(fired, breach_ns, self._target.entry(), capture, goes_on))
        self._alerts.joined(self.incidents.open, fired)

    def _why(self, fired: Fired) -> tuple[str, bool]:
        """Return why an event fired, and whether it is critical."""
        if fired.trigger == SERVER_ENDED:
            return f"it ended: {self._target.ending or HOW_UNKNOWN}", not self._target.clean
        blind = self.sight.blind(self._clock.now_ns())
        since_ns, why = (fired.time_ns, fired.why) if blind is None else blind[1:]
        return f"blind since {local(since_ns)[:19]}: {why}", bool(self._alerts.open)

    def _event(self, fired: Fired, why: str, severe: bool, target: TargetEntry) -> None:
        """Notify of what is no stall itself, and keep the minute before it."""
        value = ownevents.event(msgspec.structs.replace(fired, why=why), target)
        if self._alerts.event(value, "critical" if severe else "warning"):
            _log.warning("%s: %s", fired.trigger, why)
            self._environment.notify("stall", value, self._runner.event(value))

    def _wait_line(self, waits: WaitsReceived) -> None:
        wall = self._clock.wall_ns()
        if not self._gaps.is_catching_up(waits.clock_ns):
            for fired in self.engine.feed_waits(waits.line, wall, waits.clock_ns):
                self._fire(fired, waits.clock_ns)
        if any(key.longest_in_flight_ms >= LONG_WAIT_MS for key in waits.line.keys):
            self._rest.disturb(waits.clock_ns)
            self._has_news |= not self._hurries(waits.clock_ns)
            self._long_wait_ns = waits.clock_ns
        self._waits.add(waits.clock_ns, waits.data)
        self._runner.record(self.incidents.open, (), (waits.data,))
        self._environment.count_waits(waits.line)
        self._fleet.shipper.waits(waits.line)
        self.sight.waits(waits.clock_ns, wall)
        self.threads.take(waits.line)
        deadlocks = sum(hits.count for hits in waits.line.server.values() if hits.event)
        if deadlocks != self._deadlocks:
            self._deadlocks = deadlocks
            self._sources.deadlock_seen()

    def _captured(self, result: CaptureResult) -> None:
        if result.error is not None:
            self.metrics.captures["failed"] += 1
        else:
            self._captured_ns = self._clock.wall_ns()
        if result.key is not None:
            self.feed(result)
            return
        fired = None
        late_ns = round(((result.wait and result.wait.finished_ms) or 0.0) * 1e6)
        if result.wait is not None:
            self._rest.disturb(result.done_ns)
            wall = self._clock.wall_ns() - late_ns
            fired = self.engine.feed_wait(result.wait, wall, result.done_ns)
        if fired is not None:
            self._fire(fired, result.done_ns - late_ns, result)
        if fired is None or not self._plan.captures:
            self.feed(result)

    def _probe_state(self, state: ProbeStatus) -> None:
        if state.ready and not self.metrics.up.get("probe"):
            server = self._target.server
            waits = "; wait programs are running" if state.sees_waits else ""
            waits = "; wait programs are attached when a wait is long" if state.at_rest else waits
            _log.info("ready to capture %s (pid %d)%s", server.name, server.main.pid, waits)
        self.metrics.up["probe"] = state.ready
        if state.ready:
            self.feed(BackendReady())
        else:
            self.sight.no_waits(f"the probe has ended: {state.why or 'no reason given'}")
            self.threads.ended()

    def _reload(self) -> None:
        try:
            settings = self._environment.reload()
        except StallscopeError as error:
            _log.error("%s; keeping the previous configuration", error)
            return
        self.settings = settings
        self.incidents.configure(settings)
        self._next_poll = self._clock.now_ns()
        engine = Engine(settings, constants())
        engine.follow(self.engine)
        self.engine = engine
        self._backend.adapt(settings)
        if self._target.running:
            self._adopt()
        _log.info("triggers reloaded: %d", len(settings.triggers))

    def _publish(self) -> None:
        counts = self.metrics
        counts.ring_bytes = self._samples.bytes + self._waits.bytes
        asked = SQL_BASICS & {collector.name for collector in self._threads.collectors}
        counts.up["sql"] = bool(asked) and not asked & self._health.failing
        counts.incident_open = self.incidents.open is not None
        blind = self.sight.blind(self._clock.now_ns())
        counts.blind_seconds = 0.0 if blind is None else blind[0]
        counts.undelivered = self._alerts.delivery.waiting()
        self._fleet.publish(self._sources.version())
        counts.failures.update(self._environment.failures())
        counts.failures["store"] = self._writer.failed
        counts.writer_busy = self._writer.busy_seconds
        counts.failures["probe"] = self._backend.restarts
        late, counts.late = counts.late, counts.late + self._threads.late
        write = self._environment.publish(counts)
        counts.late = late
        if write is not None:
            self._writer.submit(write, needed=False)

    def _state(self) -> AgentState:
        up, seen = self.metrics.up, self.sight.answered_ns
        blind = self.sight.blind(self._clock.now_ns())
        return AgentState(
            server=self._target.server.name,
            pid=self._target.server.main.pid if self._target.running else None,
            uid=self._target.server.uid,
            datadir=self._target.server.datadir,
            probe=up.get("probe"),
            sql=up.get("sql"),
            incident_open=self.incidents.open is not None,
            writer=self._writer.alive,
            disk_seconds=self._writer.busy_seconds,
            waiting_jobs=self._writer.waiting,
            failing=self._health.reasons,
            undelivered=self._alerts.delivery.problems(),
            waiting=self._alerts.delivery.waiting(),
            others=self._target.others,
            unshipped=self._fleet.shipper.problems(),
            answered=None if seen is None else seen / NS,
            blind_since=None if blind is None else blind[1] / NS,
            blind_why="" if blind is None else blind[2],
            alerts=tuple(alert.key for alert in self._alerts.open),
            last_poll=self._clock.wall_ns() / NS,
            last_capture=None if self._captured_ns is None else self._captured_ns / NS,
        )

    def _disk_checked(self, why: str | None) -> None:
        self.threads.disk_full = why is not None
        self.feed(DiskChecked(why))

    def _finish(self) -> None:
        """Wait for unfinished captures and verdicts, for a limited time."""
        end = self._clock.now_ns() + WIND_DOWN_NS
        # Where the probe is not ready yet, the captures of the burst have not been taken yet.
        probe = self.metrics.up.get
        self._take_while(lambda: self.incidents.has_burst(ready=probe("probe", False)), end)
        self.feed(PassEnded())
        self._take_while(lambda: self.incidents.busy, end)

    def _take_while(self, condition: Callable[[], bool], end: int) -> None:
        while condition() and not self._stopping and self._clock.now_ns() < end:
            self._take(self.events.take(WIND_DOWN_PAUSE))

    def _end(self) -> None:
        """Write the final state, and close everything; threads that hang are abandoned."""
        self.feed(Shutdown())
        self._verdicts.close()
        closing = threading.Thread(target=self._backend.close, daemon=True)
        closing.start()
        self._publish()
        self.threads.flush(self._target.server)
        self.threads.close()
        if not self._writer.close(STOP_SECONDS):
            _log.error("timed out flushing final state")
        while (event := self.events.get(0)) is not None:
            if isinstance(event, Callback):
                event.then()
        self._close_sources()
        self._target.close()
        # Its time is over; a later capture would go into a spool that no longer exists.
        closing.join(STOP_SECONDS)
        plan = self._plan
        ended = (plan.seconds, plan.polls) != (None, None) and not self._stopping
        seconds = PASS_DELIVERY_SECONDS if ended else DELIVERY_SECONDS
        close_both(self._alerts.delivery, self._fleet.shipper, seconds)
        self._environment.notify("stop", None, None)

# SPDX-License-Identifier: Apache-2.0
"""From triggers to incidents: what is captured, how often, what belongs together."""

from __future__ import annotations

import itertools
import logging
import math
from pathlib import Path

import msgspec

from stallscope.agent.clock import NS, Clock
from stallscope.agent.crew import Camera, Crew
from stallscope.agent.events import Callback, CaptureResult, Put, QueryResult
from stallscope.agent.incidents import OpenIncident, Picture, drop
from stallscope.agent.limits import CaptureLimits
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.verdict_process import VerdictAnswer
from stallscope.agent.verdicts import VerdictProcess
from stallscope.agent.writer import Writer
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.model.incident import CaptureEntry, Fired, Incident, Verdict
from stallscope.store import Store, incident_id

__all__ = ["Capturing"]

_log = logging.getLogger(__name__)

MAX_PICTURES = 20
"""Captures of one incident: a burst, and those that later triggers of it ask for."""
LEAST_APART_NS = NS
"""Between two captures that are no burst."""
LONGEST_NS = 900 * NS
"""An incident that goes on for longer is closed, and says so."""
RETRY_NS = NS // 2
LONGEST_RETRY_NS = 10 * NS
"""From one attempt that failed to the next: each waits twice as long as the one before."""
MAX_FAILED = 4
"""Attempts of one burst that may fail before what waits for its end waits no longer."""
FLUSH_NS = 5 * NS
JUDGE_NS = 90 * NS
"""After this an incident that is over no longer waits for its verdict."""
TOLD_NS = 60 * NS
SAME_NS = 3 * NS
"""What fires so soon after all was clear belongs to the same stall."""


class _Burst(msgspec.Struct):
    left: int
    next_ns: int
    trigger: str | None
    breach_ns: int
    """Of the trigger: what a burst's delay is counted from."""
    failed: int = 0
    """Attempts in a row."""


class Capturing:
    """Opens incidents, has their captures taken and judged, and closes them.

    ``spool``: folder for captures on their way, in the same file system as the store.
    """

    def __init__(
        self,
        settings: AgentSettings,
        store: Store,
        spool: Path,
        writer: Writer,
        judge: VerdictProcess,
        camera: Camera,
        crew: Crew,
        clock: Clock,
        metrics: AgentMetrics,
        put: Put,
        *,
        raw_sql: bool = False,
    ) -> None:
        self.settings = settings
        self._limits = CaptureLimits(lambda: self.settings, store, writer)
        self._raw_sql = raw_sql
        self.open: OpenIncident | None = None
        self.found = 0
        """Incidents that began."""
        self.stalls = 0
        """Of them those with a verdict."""
        self.last_fired: dict[str, int] = {}
        """Trigger → CLOCK_MONOTONIC; of an agent of before, too."""
        self._store = store
        self._spool = spool
        self._writer = writer
        self._verdicts = judge
        self._camera = camera
        self._crew = crew
        self._clock = clock
        self._metrics = metrics
        self._put = put
        self._closing: list[OpenIncident] = []
        self._shots: dict[str, tuple[OpenIncident, Picture, Path]] = {}
        self._burst: _Burst | None = None
        self._numbers = itertools.count(1)
        self._last_ns = -LEAST_APART_NS
        self._suppressed = 0
        self._flush_due = 0
        self._told: tuple[str, int] = ("", -TOLD_NS)

    @property
    def busy(self) -> bool:
        """Say whether an incident goes on, or is still being finished."""
        return self.open is not None or bool(self._closing)

    def has_burst(self, ready: bool) -> bool:
        """Say whether captures of a burst are still to come; ``ready``: the probe is."""
        return self._in_burst or (self._burst is not None and not ready)

    @property
    def _in_burst(self) -> bool:
        return self._burst is not None and self._burst.failed < MAX_FAILED

    def fire(self, fired: Fired, breach_ns: int, shot: CaptureResult | None = None) -> None:
        """Take a trigger that fired; ``shot`` is the capture that its wait has taken already."""
        self._metrics.fired[fired.trigger] += 1
        now = self._clock.now_ns()
        last = self.last_fired.get(fired.trigger)
        if last is not None and self.open is None and 0 <= now - last < self._sleep_ns(fired):
            # The engine counts this itself, but for what an agent of before has captured.
            self._suppress(f"{fired.trigger} fired {(now - last) / NS:.0f} s ago", now, shot)
            return
        self.last_fired[fired.trigger] = now
        if self.open is not None and _is_past(self.open, now):
            self._close(self.open, now)
        if self.open is not None:
            self._join(self.open, fired, breach_ns, now, shot)
            return
        why = self._limits.refusal(now)
        if why is not None:
            self._suppress(f"{fired.trigger} fired, and nothing is captured: {why}", now, shot)
            return
        self._begin(fired, breach_ns, now, shot)

    def _begin(self, fired: Fired, breach_ns: int, now: int, shot: CaptureResult | None) -> None:
        picture = path = None
        if shot is None:
            picture, path = self._snap("trigger", fired.trigger, breach_ns, now)
        target = self._crew.target()
        incident = Incident(
            id=incident_id(fired.time_ns, target.name, target.pid),
            start_ns=fired.time_ns,
            target=target,
            triggers=(fired,),
            suppressed=self._suppressed,
        )
        self._suppressed = 0
        self.found += 1
        opened = self.open = OpenIncident(incident, self._store, self._writer, breach_ns, now)
        opened.recovery_ns = self._run_time_ns(fired.trigger)
        self._metrics.incident_open = True
        burst = self.settings.burst
        pause = round(burst.interval * NS)
        self._burst = _Burst(burst.captures - 1, now + pause, fired.trigger, breach_ns)
        if picture is not None and path is not None:
            self._await(opened, picture, path)
        elif shot is not None:
            self._take_in(opened, shot, fired, now)
        self._crew.announce(incident, opened.path, "fire")
        self._crew.before(opened)

    def _join(
        self,
        opened: OpenIncident,
        fired: Fired,
        breach_ns: int,
        now: int,
        shot: CaptureResult | None,
    ) -> None:
        """Add a trigger to the incident that goes on; another one than before is worth a look."""
        new = opened.fired(fired)
        opened.cleared_ns = None
        opened.recovery_ns = max(opened.recovery_ns, self._run_time_ns(fired.trigger))
        if shot is not None:
            self._take_in(opened, shot, fired, now)
        elif new and self._burst is None and now - self._last_ns >= LEAST_APART_NS:
            why = self._limits.refusal(now) or _enough(opened)
            if why is not None:
                opened.suppress(why)
            else:
                self._await(opened, *self._snap("trigger", fired.trigger, breach_ns, now))
        if new:
            opened.save()

    def stray(self, shot: CaptureResult) -> None:
        """Take a capture of a wait that fires nothing: the open incident's, or nobody's."""
        now = self._clock.now_ns()
        if self.open is not None and self.open.cleared_ns is None and _enough(self.open) is None:
            self._take_in(self.open, shot, None, now)
        elif shot.path is not None:
            drop(shot.path)

    def shot(self, shot: CaptureResult) -> None:
        """Take a capture that was asked for."""
        waiting = self._shots.pop(shot.key or "", None)
        if waiting is None:
            if shot.path is not None:
                drop(shot.path)
            return
        opened, picture, path = waiting
        if shot.error is not None:
            self._failed(opened, picture, shot.error)
            return
        if opened is self.open and self._burst is not None:
            self._burst.failed = 0
        self._store_shot(opened, picture, path, shot, (shot.done_ns - picture.breach_ns) / 1e6)

    def _failed(self, opened: OpenIncident, picture: Picture, why: str) -> None:
        """Try again, as long as the stall goes on: the probe may be ready soon."""
        picture.failed = True
        self._metrics.captures["failed"] += 1
        self._limits.gave_back()
        opened.note("not-captured", why)
        burst = self._burst
        if opened is self.open and burst is not None:
            del opened.pictures[picture.key]
            pause = min(RETRY_NS << min(burst.failed, 10), LONGEST_RETRY_NS)
            burst.failed += 1
            burst.left += 1
            burst.next_ns = self._clock.now_ns() + pause

    def camera_ready(self) -> None:
        """Try again at once what has failed: what takes the captures works from now on."""
        if self._burst is not None and self._burst.failed:
            self._burst.next_ns = self._clock.now_ns()

    def answer(self, answer: QueryResult) -> None:
        """Take what the server says of its connections, or its texts."""
        for opened in self._all():
            if answer.key == opened.texts_key:
                opened.take_texts(answer)
            picture = opened.pictures.get(answer.key)
            if picture is not None and picture.asked_sessions:
                picture.asked_sessions = False
                picture.sessions = answer.value
                picture.no_sessions = answer.error
                if self._raw_sql and picture.sessions is not None:
                    opened.add_raw_sql(picture)

    def tick(self, now: int, breached: bool, over_ns: int | None) -> None:
        """Do what is due.

        ``breached``: a trigger that has fired is not over yet; ``over_ns``: when the latest one
        was over, by the monotonic clock.
        """
        self._limits.check_disk(now)
        opened = self.open
        if opened is not None:
            self._go_on(opened, now, breached, over_ns)
        for one in self._all():
            self._have_judged(one)
        for one in list(self._closing):
            if self._is_done(one, now):
                self._closing.remove(one)
                self._finish(one)

    def next_due(self) -> float:
        """Return when ``tick`` has to be called, in ns of the clock."""
        if self._burst is not None and not self._shots:
            return self._burst.next_ns
        return math.inf

    def server_ended(self) -> None:
        """Close the incident that goes on: the next process has its own."""
        if self.open is not None:
            self.open.note("server-ended", "the server ended during the incident")
            self._close(self.open, self._clock.now_ns())

    def close(self, *, interrupted: bool) -> None:
        """End the incident that goes on, as one that is over, or was interrupted."""
        now = self._clock.now_ns()
        if self.open is not None:
            if not interrupted:
                self.open.note("pass-ended", "the pass of the agent ended before the recovery")
            self._close(self.open, now)
        if interrupted:
            for one in self._closing:
                self._finish(one, interrupted=True)
            self._closing.clear()

    def _all(self) -> list[OpenIncident]:
        return [*self._closing, *([self.open] if self.open is not None else [])]

    def _go_on(self, opened: OpenIncident, now: int, breached: bool, over_ns: int | None) -> None:
        burst = self._burst
        if burst is not None and burst.failed and not breached:
            burst = self._burst = None
        if burst is not None and not self._shots and now >= burst.next_ns:
            self._next_of_burst(opened, burst, now)
        if now >= self._flush_due:
            self._flush_due = now + FLUSH_NS
            opened.flush()
        if not self._in_burst and not self._shots and opened.texts_key is None:
            # Not before: in the SQL thread it would stand before the burst's connections.
            opened.texts_key = f"texts-{next(self._numbers)}"
            opened.texts_due = self._crew.ask_texts(opened.texts_key)
        if breached:
            opened.cleared_ns = None
        elif opened.cleared_ns is None and self._burst is None:
            opened.cleared_ns = now
            known = over_ns is not None and opened.breach_ns <= over_ns <= now
            opened.over_ns = over_ns if known else now
        if opened.cleared_ns is not None and now - opened.cleared_ns >= opened.recovery_ns:
            self._close(opened, now)
        elif now - opened.begun_ns > LONGEST_NS:
            opened.note(
                "goes-on", f"it goes on after {LONGEST_NS // NS} s, and is recorded no more"
            )
            self._close(opened, now)

    def _next_of_burst(self, opened: OpenIncident, burst: _Burst, now: int) -> None:
        if burst.left <= 0:
            self._burst = None
            return
        why = self._limits.refusal(now) or _enough(opened)
        if why is not None:
            opened.suppress(why)
            self._burst = None
            return
        burst.left -= 1
        burst.next_ns = now + round(self.settings.burst.interval * NS)
        self._await(opened, *self._snap("burst", burst.trigger, burst.breach_ns, now))

    def _snap(
        self, reason: str, trigger: str | None, breach_ns: int, now: int
    ) -> tuple[Picture, Path]:
        key = f"capture-{next(self._numbers)}"
        path = self._spool / f"{key}.jsonl.zst"
        self._camera.capture(key, path)
        self._limits.took(now)
        self._last_ns = now
        picture = Picture(key, reason, trigger, breach_ns, self._clock.wall_ns())
        return picture, path

    def _await(self, opened: OpenIncident, picture: Picture, path: Path) -> None:
        opened.pictures[picture.key] = picture
        self._shots[picture.key] = (opened, picture, path)
        self._ask_sessions(picture)

    def _ask_sessions(self, picture: Picture) -> None:
        picture.no_sessions = self._crew.ask_sessions(picture.key)
        picture.asked_sessions = picture.no_sessions is None

    def _take_in(
        self, opened: OpenIncident, shot: CaptureResult, fired: Fired | None, now: int
    ) -> None:
        """Take a capture that a wait took by itself."""
        wait = shot.wait
        if shot.path is None:
            opened.note("not-captured", shot.error or "the probe does not say why")
            self._metrics.captures["failed"] += 1
            return
        key = f"wait-{next(self._numbers)}"
        late_ms = wait.finished_ms if wait is not None else None
        picture = Picture(key, "trigger", fired.trigger if fired else None, now, 0)
        picture.time_ns = self._clock.wall_ns() - round((late_ms or 0.0) * 1e6)
        opened.pictures[key] = picture
        self._limits.took(now)
        self._last_ns = now
        if wait is not None and wait.suppressed:
            opened.note("suppressed-by-probe", f"{wait.suppressed} captures came too often")
        self._ask_sessions(picture)
        self._store_shot(opened, picture, Path(shot.path), shot, late_ms)

    def _store_shot(
        self,
        opened: OpenIncident,
        picture: Picture,
        path: Path,
        shot: CaptureResult,
        late_ms: float | None,
    ) -> None:
        self._metrics.captures["partial" if shot.partial else "whole"] += 1
        if picture.reason != "trigger":
            late_ms = None
        if late_ms is not None:
            self._metrics.captured(late_ms / 1000)
        entry = CaptureEntry(
            file="",
            time_ns=picture.time_ns,
            reason=picture.reason,
            trigger=picture.trigger,
            breach_to_done_ms=None if late_ms is None else round(late_ms, 3),
            partial=shot.partial,
            sessions=picture.no_sessions,
        )
        opened.store_capture(picture, path, entry)

    def _suppress(self, why: str, now: int, shot: CaptureResult | None) -> None:
        self._suppressed += 1
        self._metrics.captures["suppressed"] += 1
        if shot is not None and shot.path is not None:
            drop(shot.path)
        if why != self._told[0] or now - self._told[1] > TOLD_NS:
            self._told = (why, now)
            _log.warning("%s", why)

    def _run_time_ns(self, trigger: str) -> int:
        found = [t.run_time for t in self.settings.triggers if t.name == trigger]
        return round(max(found, default=0.0) * NS)

    def _sleep_ns(self, fired: Fired) -> int:
        found = [t.sleep for t in self.settings.triggers if t.name == fired.trigger]
        return round(max(found, default=0.0) * NS)

    def _have_judged(self, opened: OpenIncident) -> None:
        """Have judged what is complete; a burst is judged as a whole."""
        if opened is self.open and self._in_burst:
            return
        pictures = opened.pictures.values()
        if any(not p.settled or (p.judging and not p.judged) for p in pictures):
            return
        requests = opened.requests()
        if not requests:
            return

        def done(found: tuple[VerdictAnswer, ...]) -> None:
            self._put(Callback(lambda: self._judged(opened, found)))

        self._verdicts.judge(requests, done)

    def _judged(self, opened: OpenIncident, found: tuple[VerdictAnswer, ...]) -> None:
        self._metrics.failures["analysis"] += sum(one.error is not None for one in found)
        if opened.finished:
            return
        before = opened.verdict
        opened.judged(found)
        opened.save()
        # What an incident began with may not be what it is about.
        if not opened.announced or _name(opened.verdict) != _name(before):
            self._count(opened, before)
            opened.announced = True
            self._tell_of(opened, opened.value(), "stall")

    def _count(self, opened: OpenIncident, before: Verdict | None = None) -> None:
        self._metrics.incidents[_name(opened.verdict)] += 1
        self.stalls += opened.verdict is not None and before is None

    def _tell_of(self, opened: OpenIncident, value: Incident, event: str) -> None:
        """Announce it once all that was handed to the writer before is on disk."""

        def saved(_: None) -> None:
            if opened.lost is None:
                self._crew.announce(
                    msgspec.structs.replace(value, id=opened.path.name), opened.path, event
                )

        self._writer.submit(lambda: None, saved)

    def _close(self, opened: OpenIncident, now: int) -> None:
        """Take no more captures for it; it is finished when its verdict is there."""
        if opened.cleared_ns is None:
            opened.cleared_ns = opened.over_ns = now
        opened.end()
        self._burst = None
        self.open = None
        self._metrics.incident_open = False
        self._closing.append(opened)

    def _is_done(self, opened: OpenIncident, now: int) -> bool:
        if opened.lost is not None:
            return True
        waiting = any(not p.failed and not p.judged for p in opened.pictures.values())
        return (
            not (waiting or opened.texts_due)
            or now - (opened.cleared_ns or 0) > JUDGE_NS + opened.recovery_ns
        )

    def _finish(self, opened: OpenIncident, *, interrupted: bool = False) -> None:
        if not opened.announced:
            self._count(opened)
        value = opened.value(end_ns=opened.end_ns, interrupted=interrupted)
        opened.finished = True
        opened.finish(value)
        if not opened.announced:
            opened.announced = True
            self._tell_of(opened, value, "stall")
        self._tell_of(opened, value, "end")


def _is_past(opened: OpenIncident, now: int) -> bool:
    """Say whether what fires now is another stall, though the recovery is still looked at."""
    if opened.lost is not None:
        return True
    return opened.cleared_ns is not None and now - opened.cleared_ns > SAME_NS


def _name(verdict: Verdict | None) -> str:
    return "none" if verdict is None else verdict.signature or "unknown"


def _enough(opened: OpenIncident) -> str | None:
    if len(opened.pictures) >= MAX_PICTURES:
        return f"{MAX_PICTURES} captures of one incident are enough"
    return None

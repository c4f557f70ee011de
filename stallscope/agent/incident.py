# SPDX-License-Identifier: Apache-2.0
"""One incident as a state machine, without I/O and clocks; docs/agent.md.

Events are method calls, each with its moment; commands are given to ``emit``. Nothing else changes
an incident.

    CAPTURING ---- its burst of captures is taken
      |     ^
      v     |
    RETRYING ----- captures fail, and are retried at growing intervals
      |
      v
    ONGOING <----> RECOVERING ---- its triggers are over; the recovery is recorded
      |              |
      v              v
    CLOSING ------ takes nothing new; waits for verdicts and texts
      |
      v
    CLOSED ------- written for the last time
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

import msgspec

from stallscope.agent.clock import NS
from stallscope.agent.events import CaptureResult, QueryResult
from stallscope.agent.incidentcaptures import Burst, Capture, Step
from stallscope.agent.limits import CaptureLimits
from stallscope.agent.messages import (
    AnalysisRequest,
    AnalyzeCaptures,
    CloseFolder,
    Command,
    DropCapture,
    FetchSessions,
    FetchTexts,
    Moment,
    Notify,
    OpenFolder,
    Polled,
    SaveIncident,
    StoreCapture,
    StoreStatements,
    StoreTexts,
    Suppressed,
    TakeCapture,
    TriggerFired,
)
from stallscope.agent.verdict_process import VerdictAnswer
from stallscope.base.backoff import Backoff
from stallscope.base.text import one_line
from stallscope.collectors.triggers.settings import BurstSettings
from stallscope.model.capture import Note
from stallscope.model.incident import CaptureEntry, Fired, Incident, Verdict, verdict_name

__all__ = ["MAX_CAPTURES", "TRANSITIONS", "IncidentMachine", "State"]

MAX_CAPTURES = 20
"""The most captures of one incident: its burst, and those of later triggers."""
LEAST_APART_NS = NS
"""The least time between two captures outside of a burst."""
LONGEST_NS = 900 * NS
"""An incident that lasts longer is closed, with a note."""
RETRY_NS = NS // 2
LONGEST_RETRY_NS = 10 * NS
"""The pause after a failed attempt; it doubles with each further one."""
MAX_FAILED = 4
"""After so many failed attempts in a row, other steps no longer wait for the burst."""
ANALYSIS_NS = 90 * NS
"""How long an incident that is over waits for its verdict."""
SAME_NS = 3 * NS
"""A trigger that fires so soon after the last breach belongs to the same stall."""
MAX_FIRED = 100
"""The most triggers that one incident lists; further ones are counted."""
MAX_NOTES = 50
NOT_ANALYZED = "not analyzed: they are added by the analysis"
"""Why a stored capture has no sessions until it is analyzed, which may never happen."""


class State(enum.Enum):
    """The state of an incident."""

    CAPTURING = "capturing"
    RETRYING = "retrying"
    ONGOING = "ongoing"
    RECOVERING = "recovering"
    CLOSING = "closing"
    CLOSED = "closed"


TRANSITIONS = {
    State.CAPTURING: {State.RETRYING, State.ONGOING, State.CLOSING},
    State.RETRYING: {State.CAPTURING, State.ONGOING, State.CLOSING},
    State.ONGOING: {State.RECOVERING, State.CLOSING},
    State.RECOVERING: {State.ONGOING, State.CLOSING},
    State.CLOSING: {State.CLOSED},
    State.CLOSED: set[State](),
}


class IncidentMachine:
    """One incident. ``numbers`` makes its keys unique."""

    def __init__(
        self,
        number: int,
        value: Incident,
        limits: CaptureLimits,
        numbers: Iterator[int],
        emit: Callable[[Command], None],
    ) -> None:
        self.number = number
        self.state = State.CAPTURING
        self.captures: dict[str, Capture] = {}
        self.verdict: Verdict | None = None
        self.lost: str | None = None
        """Why it could not be stored."""
        self.texts_key: str | None = None
        self._value = value
        self._limits = limits
        self._numbers = numbers
        self._emit = emit
        self._burst: Burst | None = None
        self._burst_ns = 0
        """From one capture of a burst to the next."""
        self._breach_ns = 0
        self._begun_ns = 0
        self._over_ns = 0
        """When the last breach was over."""
        self._cleared_ns = 0
        """When the recovery began."""
        self._closing_ns = 0
        self._recovery_ns = 0
        self._texts_due = False
        self._records = True
        self._notified = False
        self._fired: list[Fired] = []
        self._more_fired = 0
        self._notes: list[Note] = []
        self._suppressed = value.suppressed

    @property
    def is_open(self) -> bool:
        """Return whether its stall goes on."""
        return self.state not in (State.CLOSING, State.CLOSED)

    @property
    def is_capturing(self) -> bool:
        """Return whether a capture that it asked for is being taken."""
        return any(capture.step is Step.REQUESTED for capture in self.captures.values())

    @property
    def next_ns(self) -> int | None:
        """When the next capture of its burst is due, by the monotonic clock."""
        return None if self._burst is None else self._burst.next_ns

    def is_past(self, now: Moment) -> bool:
        """Return whether a trigger that fires now is another stall, although the recovery is still
        recorded."""
        if self.lost is not None:
            return True
        return self.state is State.RECOVERING and now.ns - self._cleared_ns > SAME_NS

    def value(self, *, end_ns: int | None = None, interrupted: bool = False) -> Incident:
        """Return the incident as it is known now."""
        notes = list(self._notes)
        if self._more_fired:
            what = f"triggers fired {self._more_fired} more times than listed"
            notes.append(Note("more-triggers", what))
        return msgspec.structs.replace(
            self._value,
            end_ns=end_ns,
            interrupted=interrupted,
            triggers=tuple(self._fired),
            captures=tuple(c.entry for c in self.captures.values() if c.entry is not None),
            verdict=self.verdict,
            suppressed=self._suppressed,
            notes=tuple(notes),
        )

    def begin(
        self,
        event: TriggerFired,
        burst: BurstSettings,
        recovery_ns: int,
        now: Moment,
        asleep: str | None = None,
    ) -> None:
        """Open it; notify also where captures are refused. ``asleep``: why its trigger requests
        none now; then no samples are kept either, for it may fire all the time."""
        self._begun_ns = now.ns
        self._breach_ns = event.breach_ns
        self._recovery_ns = recovery_ns
        self._burst_ns = round(burst.interval * NS)
        self._add_fired(event.fired)
        # First of all: whatever fails later, somebody is notified.
        self._emit(Notify(self.number, "open", self.value(), stored=False))
        trigger, capture = event.fired.trigger, event.capture
        refusal = asleep or self._limits.refusal(now.ns)
        self._records = self._limits.room is None and asleep is None
        if refusal is not None:
            self._enter(State.ONGOING)
            self._suppress(refusal, f"{trigger} fired, but no capture was taken: {refusal}")
            if capture is not None:
                self._drop(capture)
        else:
            after_ns = now.ns + self._burst_ns
            backoff = Backoff(RETRY_NS / NS, LONGEST_RETRY_NS / NS, spread=0.0)
            self._burst = Burst(burst.captures - 1, after_ns, trigger, event.breach_ns, backoff)
            if capture is None:  # first of all: it must show this moment
                self._request("trigger", trigger, event.breach_ns, now)
        self._emit(OpenFolder(self.number, self.value(), self._records))
        if refusal is None and capture is not None:
            self._take_in(capture, trigger, now)
        self._emit(Notify(self.number, "fire", self.value()))

    def join(self, event: TriggerFired, recovery_ns: int, now: Moment) -> None:
        """Add a trigger; one that has not fired before requests one more capture."""
        new = self._add_fired(event.fired)
        if self.state is State.RECOVERING:
            self._enter(State.ONGOING)
        self._recovery_ns = max(self._recovery_ns, recovery_ns)
        capture = event.capture
        if capture is not None:
            why = self._refusal(now)
            if why is None:
                self._take_in(capture, event.fired.trigger, now)
            else:
                self._suppress(why)
                self._drop(capture)
        elif new and self._burst is None and now.ns - self._limits.last_ns >= LEAST_APART_NS:
            why = self._refusal(now)
            if why is not None:
                self._suppress(why)
            else:
                self._request("trigger", event.fired.trigger, event.breach_ns, now)
        if new:
            self._save()

    def add_capture(self, result: CaptureResult, now: Moment) -> None:
        """Add a capture of a wait that fires no trigger, while the stall goes on."""
        if self.state is State.RECOVERING or self._refusal(now) is not None:
            self._drop(result)
        else:
            self._take_in(result, None, now)

    def capture_done(self, key: str, result: CaptureResult, now: Moment) -> None:
        """Take the result of a requested capture."""
        capture = self.captures[key]
        if capture.step is not Step.REQUESTED:
            self._drop(result)
            return
        if result.error is not None or result.path is None:
            self._capture_failed(capture, result.error or "no reason given", now)
            return
        if self._burst is not None:
            self._burst.backoff.reset()
            if self.state is State.RETRYING:
                self._enter(State.CAPTURING)
        self._store(capture, result, (result.done_ns - capture.breach_ns) / 1e6)

    def backend_ready(self, now: Moment) -> None:
        """Retry failed captures at once: the backend works from now on."""
        if self._burst is not None and self._burst.backoff.failed:
            self._burst.next_ns = now.ns

    def sessions_fetched(self, key: str, result: QueryResult) -> None:
        """Take the server's sessions."""
        capture = self.captures[key]
        if not capture.sessions_due:
            return
        capture.sessions_due = False
        capture.sessions = result.value
        capture.no_sessions = result.error
        if capture.step is not Step.REQUESTED:  # else memory will show more
            self._store_statements(capture)

    def texts_fetched(self, result: QueryResult) -> None:
        """Take the texts of the server; add a note for each that is missing."""
        if not self._texts_due:
            return
        self._texts_due = False
        if result.error is not None:
            self.note("no-texts", result.error)
        if result.value is None or self.lost is not None:
            return
        for missing in result.value.missing:
            self.note("no-text", missing)
        self._emit(StoreTexts(self.number, result.value))

    def capture_stored(self, key: str, entry: CaptureEntry) -> None:
        """A capture is in the folder, under this name."""
        capture = self.captures[key]
        if capture.step is Step.STORING:
            capture.step = Step.STORED
            capture.entry = entry

    def capture_lost(self, key: str, why: str) -> None:
        """A capture could not be put into the folder."""
        capture = self.captures[key]
        if capture.step is Step.STORING:
            capture.step = Step.FAILED
            self.note("capture-lost", why)

    def folder_lost(self, why: str) -> None:
        """It cannot be stored; notifications are still sent."""
        self.lost = why

    def analyzed(
        self, answers: Iterable[tuple[str, VerdictAnswer]], together: Verdict | None
    ) -> None:
        """Take the verdicts of captures, and that of all of them together."""
        taken: list[VerdictAnswer] = []
        for key, answer in answers:
            capture = self.captures.get(key)
            if capture is None or capture.entry is None or capture.step is not Step.ANALYZING:
                continue
            capture.step = Step.ANALYZED
            capture.sessions, capture.memory = None, ()
            self._take_answer(capture, capture.entry, answer)
            taken.append(answer)
        if not taken:
            return
        before = self.verdict
        self.verdict = together
        if together is None and any(answer.error is not None for answer in taken):
            self.verdict = self._surest()
        self._save()
        # The trigger that fired first may be a side effect of the stall.
        if not self._notified or verdict_name(self.verdict) != verdict_name(before):
            self._notify_stall(self.value())

    def _surest(self) -> Verdict | None:
        """Return the surest verdict of one capture: some could not be analyzed with the others."""
        verdicts = [c.entry.verdict for c in self.captures.values() if c.entry and c.entry.verdict]
        return max(verdicts, key=lambda verdict: verdict.confidence, default=None)

    def poll(self, event: Polled, now: Moment, *, capturing: bool) -> None:
        """Do what is due; ``capturing``: some capture is being taken."""
        if self.is_open:
            self._advance(event, now, capturing)
        self._analyze()
        self._notify_without_verdict()
        if self.state is State.CLOSING and self._is_complete(now):
            self.finish()

    def close(self, now: Moment) -> None:
        """Take no more captures; it is closed when its verdict is there."""
        if self.state is not State.RECOVERING:
            self._over_ns = now.ns
        self._closing_ns = now.ns
        self._burst = None
        self._enter(State.CLOSING)

    def finish(self, *, interrupted: bool = False) -> None:
        """Write it for the last time."""
        self._enter(State.CLOSED)
        # From the duration: the time of day may have been set meanwhile.
        end_ns = self._value.start_ns + max(0, self._over_ns - self._breach_ns)
        value = self.value(end_ns=end_ns, interrupted=interrupted)
        if self.lost is None:
            self._emit(CloseFolder(self.number, value))
        if not self._notified:
            self._notify_stall(value)
        self._emit(Notify(self.number, "end", value, stored=self.lost is None))

    def note(self, code: str, message: str) -> None:
        """Add a note; the same one is added once."""
        note = Note(code, one_line(message))
        if note not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.append(note)

    def _enter(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"from {self.state} to {state}"
        self.state = state

    def _advance(self, event: Polled, now: Moment, capturing: bool) -> None:
        burst = self._burst
        if burst is not None and burst.backoff.failed and not event.breached:
            self._end_burst()
        elif burst is not None and not capturing and now.ns >= burst.next_ns:
            self._next_of_burst(burst, now)
        if self.state is not State.CAPTURING and not capturing and self._records:
            self._fetch_texts()
        if event.breached and self.state is State.RECOVERING:
            self._enter(State.ONGOING)
        elif not event.breached and self.state is State.ONGOING:
            over_ns = event.over_ns
            known = over_ns is not None and self._breach_ns <= over_ns <= now.ns
            self._over_ns = over_ns if known and over_ns is not None else now.ns
            self._cleared_ns = now.ns
            self._enter(State.RECOVERING)
        if self.state is State.RECOVERING and now.ns - self._cleared_ns >= self._recovery_ns:
            self.close(now)
        elif now.ns - self._begun_ns > LONGEST_NS:
            why = f"still ongoing after {LONGEST_NS // NS} s and is no longer recorded"
            self.note("goes-on", why)
            self.close(now)

    def _next_of_burst(self, burst: Burst, now: Moment) -> None:
        if burst.left <= 0:
            self._end_burst()
            return
        why = self._refusal(now)
        if why is not None:
            self._suppress(why)
            self._end_burst()
            return
        burst.left -= 1
        burst.next_ns = now.ns + self._burst_ns
        self._request("burst", burst.trigger, burst.breach_ns, now)

    def _end_burst(self) -> None:
        self._burst = None
        self._enter(State.ONGOING)

    def _drop(self, result: CaptureResult) -> None:
        if result.path is not None:
            self._emit(DropCapture(result.path))

    def _refusal(self, now: Moment) -> str | None:
        """Return why it may have no other capture, one of the probe included; None: it may."""
        why = self._limits.refusal(now.ns)
        if why is None and len(self.captures) >= MAX_CAPTURES:
            why = f"{MAX_CAPTURES} captures are the limit of one incident"
        return why

    def _suppress(self, why: str, message: str | None = None) -> None:
        self._suppressed += 1
        self.note("suppressed", why)
        self._emit(Suppressed(message))

    def _request(self, reason: str, trigger: str, breach_ns: int, now: Moment) -> None:
        key = f"capture-{next(self._numbers)}"
        self.captures[key] = Capture(key, reason, trigger, breach_ns, now.wall_ns)
        self._limits.count(now.ns)
        self._emit(TakeCapture(key))
        self._emit(FetchSessions(key))

    def _take_in(self, result: CaptureResult, trigger: str | None, now: Moment) -> None:
        wait = result.wait
        if result.path is None:
            self.note("not-captured", result.error or "no reason given")
            return
        late_ms = None if wait is None else wait.finished_ms
        key = f"wait-{next(self._numbers)}"
        at_ns = now.wall_ns - round((late_ms or 0.0) * 1e6)
        capture = self.captures[key] = Capture(key, "trigger", trigger, now.ns, at_ns)
        self._limits.count(now.ns)
        if wait is not None and wait.suppressed:
            self.note(
                "suppressed-by-probe", f"{wait.suppressed} captures were skipped: too frequent"
            )
        self._emit(FetchSessions(key))
        self._store(capture, result, late_ms)

    def _store(self, capture: Capture, result: CaptureResult, late_ms: float | None) -> None:
        assert result.path is not None
        capture.memory = result.memory
        if capture.reason != "trigger" or late_ms is None:
            late_ms = None
        capture.step = Step.STORING
        entry = CaptureEntry(
            file="",
            time_ns=capture.time_ns,
            reason=capture.reason,
            trigger=capture.trigger,
            breach_to_done_ms=None if late_ms is None else round(late_ms, 3),
            partial=result.partial,
            sessions=capture.no_sessions or NOT_ANALYZED,
        )
        self._emit(StoreCapture(self.number, capture.key, result.path, entry))
        self._store_statements(capture)

    def _store_statements(self, capture: Capture) -> None:
        """Store what the connections ran, once SQL and the capture have shown it."""
        known = capture.known_sessions
        if known is not None and not capture.sessions_due and self.lost is None:
            self._emit(StoreStatements(self.number, capture.time_ns, known))

    def _capture_failed(self, capture: Capture, why: str, now: Moment) -> None:
        """Try again, as long as the stall goes on: the probe may be ready soon."""
        self._store_statements(capture)
        self._limits.uncount()
        self.note("not-captured", why)
        burst = self._burst
        if burst is None:
            capture.step = Step.FAILED
            return
        del self.captures[capture.key]
        burst.next_ns = now.ns + round(burst.backoff.next() * NS)
        burst.left += 1
        if burst.backoff.failed >= MAX_FAILED and self.state is State.CAPTURING:
            self._enter(State.RETRYING)

    def _fetch_texts(self) -> None:
        # Not before the burst is over: its queries of sessions would wait behind the texts.
        if self.texts_key is None:
            self.texts_key = f"texts-{next(self._numbers)}"
            self._texts_due = True
            self._emit(FetchTexts(self.texts_key))

    def _add_fired(self, fired: Fired) -> bool:
        """Take a trigger that fired; return whether it is new in this incident."""
        new = all(known.trigger != fired.trigger for known in self._fired)
        if len(self._fired) < MAX_FIRED:
            self._fired.append(fired)
        else:
            self._more_fired += 1
        return new

    def _analyze(self) -> None:
        """Request the analysis of finished captures; a burst is analyzed as a whole."""
        captures = self.captures.values()
        if self.state is State.CAPTURING or not all(capture.settled for capture in captures):
            return
        if any(capture.step is Step.ANALYZING for capture in captures):
            return
        requests = []
        for capture in captures:
            if capture.step is Step.STORED and capture.entry is not None:
                capture.step = Step.ANALYZING
                known_sessions = capture.known_sessions
                requests.append(AnalysisRequest(capture.key, capture.entry.file, known_sessions))
        if requests:
            known = tuple(
                capture.entry.file
                for capture in captures
                if capture.step is Step.ANALYZED and capture.entry is not None
            )
            self._emit(AnalyzeCaptures(self.number, tuple(requests), known))

    def _take_answer(self, capture: Capture, entry: CaptureEntry, answer: VerdictAnswer) -> None:
        for missing in answer.notes:
            self.note("not-known", missing)
        if answer.version is not None:
            target = msgspec.structs.replace(self._value.target, version=answer.version)
            self._value = msgspec.structs.replace(self._value, target=target)
        sessions = answer.sessions or capture.no_sessions
        if answer.error is not None:
            self.note("not-analyzed", f"{entry.file}: {answer.error}")
            sessions = entry.sessions
        capture.entry = msgspec.structs.replace(
            entry,
            analyzed=answer.error is None,
            verdict=answer.verdict,
            sessions=sessions,
        )

    def _notify_without_verdict(self) -> None:
        """Notify where no verdict will come soon: limits hold back captures, not notifications."""
        if self._notified or self.state in (State.CAPTURING, State.CLOSED):
            return
        due = list(self.captures.values())
        if self.state is State.RETRYING:  # the next attempt is likely to fail again
            due = [capture for capture in due if capture.step is not Step.REQUESTED]
        if all(capture.done for capture in due):
            self._notify_stall(self.value())

    def _notify_stall(self, value: Incident) -> None:
        self._notified = True
        self._emit(Notify(self.number, "stall", value, stored=self.lost is None))

    def _save(self) -> None:
        if self.lost is None:
            self._emit(SaveIncident(self.number, self.value()))

    def _is_complete(self, now: Moment) -> bool:
        waiting = any(not capture.done for capture in self.captures.values())
        late = now.ns - self._closing_ns > ANALYSIS_NS
        return self.lost is not None or late or not (waiting or self._texts_due)

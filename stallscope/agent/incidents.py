# SPDX-License-Identifier: Apache-2.0
"""Which incident an event belongs to: the one that goes on, a new one, or one that is closing.

Without I/O and clocks, as the incidents themselves (``incident.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from stallscope.agent.clock import NS
from stallscope.agent.events import CaptureResult, QueryResult
from stallscope.agent.incident import IncidentMachine, State
from stallscope.agent.limits import CaptureLimits
from stallscope.agent.messages import (
    BackendReady,
    CaptureLost,
    CapturesAnalyzed,
    CaptureStored,
    Command,
    DiskChecked,
    DropCapture,
    FolderLost,
    IncidentEvent,
    Moment,
    PassEnded,
    Polled,
    ServerEnded,
    Shutdown,
    Suppressed,
    TriggerFired,
)
from stallscope.collectors.triggers.settings import AgentSettings, BurstSettings
from stallscope.model.incident import Incident
from stallscope.store import incident_id

__all__ = ["Incidents"]


MAX_SINGLE = 5
"""Captures of a burst that are taken one by one: gdb stops the server for each."""
LEAST_SINGLE_SECONDS = 0.1


class Incidents:
    """All incidents of an agent. ``handle`` takes an event, and returns commands.

    ``takes_bursts``: whether each capture that is requested is a burst; else an incident requests
    the captures of its burst one by one.
    """

    def __init__(
        self, settings: AgentSettings, takes_bursts: Callable[[], bool] = lambda: False
    ) -> None:
        self.found = 0
        """How many incidents began."""
        self.stalls = 0
        """How many of them have a verdict."""
        self.last_fired: dict[str, int] = {}
        """Trigger → when it fired outside of its sleep, CLOCK_MONOTONIC; of an earlier agent, too.
        """
        self._settings = settings
        self._takes_bursts = takes_bursts
        self._limits = CaptureLimits(settings.captures_an_hour)
        self._open: IncidentMachine | None = None
        self._closing: list[IncidentMachine] = []
        self._numbers = itertools.count(1)
        self._commands: list[Command] = []

    @property
    def open(self) -> int | None:
        """The number of the incident that goes on."""
        return None if self._open is None else self._open.number

    @property
    def busy(self) -> bool:
        """Return whether an incident goes on, or is still being finished."""
        return self._open is not None or bool(self._closing)

    @property
    def next_ns(self) -> float:
        """When a Polled is due, by the monotonic clock."""
        due = None if self._open is None else self._open.next_ns
        return math.inf if due is None or self._is_capturing() else due

    def has_burst(self, *, ready: bool) -> bool:
        """Return whether captures of a burst are due; ``ready``: the backend works."""
        state = None if self._open is None else self._open.state
        return state is State.CAPTURING or (state is State.RETRYING and not ready)

    def configure(self, settings: AgentSettings) -> None:
        """Use other settings; an ongoing incident keeps its burst."""
        self._settings = settings
        self._limits.captures_an_hour = settings.captures_an_hour

    def handle(self, event: IncidentEvent, now: Moment) -> list[Command]:
        """Take an event; return the commands, in order."""
        match event:
            case TriggerFired():
                self._trigger_fired(event, now)
            case Polled():
                self._poll(event, now)
            case CaptureResult():
                self._captured(event, now)
            case QueryResult():
                self._fetched(event)
            case CaptureStored(key) | CaptureLost(key):
                self._stored(key, event)
            case CapturesAnalyzed():
                self._analyzed(event)
            case DiskChecked(why):
                self._limits.room = why
            case FolderLost(number, why):
                for machine in self._all():
                    if machine.number == number:
                        machine.folder_lost(why)
            case BackendReady():
                if self._open is not None:
                    self._open.backend_ready(now)
            case ServerEnded(how):
                why = f": {how}" if how else ""
                self._close("server-ended", f"the server ended during the incident{why}", now)
            case PassEnded():
                self._close("pass-ended", "the pass ended before the recovery", now)
            case Shutdown():
                self._shut_down(now)
        commands = self._commands.copy()
        self._commands.clear()  # the same list: each incident adds to it
        return commands

    def _all(self) -> list[IncidentMachine]:
        return [*self._closing, *([self._open] if self._open is not None else [])]

    def _is_capturing(self) -> bool:
        return any(machine.is_capturing for machine in self._all())

    def _trigger_fired(self, event: TriggerFired, now: Moment) -> None:
        fired = event.fired
        found = [one for one in self._settings.triggers if one.name == fired.trigger]
        sleep_ns = round(max((one.sleep for one in found), default=0.0) * NS)
        recovery_ns = round(max((one.run_time for one in found), default=0.0) * NS)
        last = self.last_fired.get(fired.trigger)
        asleep = last is not None and 0 <= now.ns - last < sleep_ns
        if asleep and event.goes_on and self._open is None:
            message = f"{fired.trigger}: its stall goes on; it was captured less than"
            self._commands.append(Suppressed(f"{message} {sleep_ns / NS:.0f} s ago"))
            self._drop(event.capture)
            return
        if not asleep:
            self.last_fired[fired.trigger] = now.ns
        if self._open is not None and self._open.is_past(now):
            self._close_open(now)
        if self._open is not None:
            self._open.join(event, recovery_ns, now)
            return
        value = Incident(
            id=incident_id(fired.time_ns, event.target.name, event.target.pid),
            start_ns=fired.time_ns,
            target=event.target,
        )
        self.found += 1
        self._open = IncidentMachine(
            self.found, value, self._limits, self._numbers, self._commands.append
        )
        burst = self._settings.burst
        if self._takes_bursts():
            burst = BurstSettings(captures=1)
        else:
            burst = BurstSettings(
                captures=min(burst.captures, MAX_SINGLE),
                interval=max(burst.interval, LEAST_SINGLE_SECONDS),
            )
        why = f"{fired.trigger} fired less than {sleep_ns / NS:.0f} s ago" if asleep else None
        self._open.begin(event, burst, recovery_ns, now, why)

    def _poll(self, event: Polled, now: Moment) -> None:
        for machine in self._all():
            machine.poll(event, now, capturing=self._is_capturing())
        if self._open is not None and not self._open.is_open:
            self._closing.append(self._open)
            self._open = None
        self._forget_closed()

    def _captured(self, result: CaptureResult, now: Moment) -> None:
        if result.key is None:
            if self._open is not None:
                self._open.add_capture(result, now)
            else:
                self._drop(result)
            return
        machine = self._of_capture(result.key)
        if machine is not None:
            machine.capture_done(result.key, result, now)
        else:
            self._drop(result)

    def _fetched(self, result: QueryResult) -> None:
        for machine in self._all():
            if result.key == machine.texts_key:
                machine.texts_fetched(result)
            elif result.key in machine.captures:
                machine.sessions_fetched(result.key, result)

    def _stored(self, key: str, event: CaptureStored | CaptureLost) -> None:
        machine = self._of_capture(key)
        if machine is None:
            return
        if isinstance(event, CaptureStored):
            machine.capture_stored(key, event.entry)
        else:
            machine.capture_lost(key, event.why)

    def _analyzed(self, event: CapturesAnalyzed) -> None:
        for machine in self._all():
            if machine.number == event.incident:
                before = machine.verdict
                machine.analyzed(event.answers, event.together)
                self.stalls += before is None and machine.verdict is not None

    def _of_capture(self, key: str) -> IncidentMachine | None:
        return next((machine for machine in self._all() if key in machine.captures), None)

    def _drop(self, capture: CaptureResult | None) -> None:
        if capture is not None and capture.path is not None:
            self._commands.append(DropCapture(capture.path))

    def _close(self, code: str, message: str, now: Moment) -> None:
        if self._open is not None:
            self._open.note(code, message)
            self._close_open(now)

    def _close_open(self, now: Moment) -> None:
        assert self._open is not None
        self._open.close(now)
        self._closing.append(self._open)
        self._open = None

    def _shut_down(self, now: Moment) -> None:
        if self._open is not None:
            self._close_open(now)
        for machine in self._closing:
            machine.finish(interrupted=True)
        self._forget_closed()

    def _forget_closed(self) -> None:
        self._closing = [one for one in self._closing if one.state is not State.CLOSED]

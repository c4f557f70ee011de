# SPDX-License-Identifier: Apache-2.0
"""From breaches to alerts: one alert for each stall, however many incidents and agents record it.

An alert begins with a breach, and is over when values show that each of its triggers is clear.
Nothing else ends it. An incident ends before its stall where the agent is stopped or killed, the
server ends, a pass of ``cron`` is over, or it is recorded for too long; where a value is not known,
it is not known whether the stall goes on. The alert stays open, and a new incident continues it.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from stallscope.model.incident import EVENTS, Fired, Incident
from stallscope.model.stallstatus import Status
from stallscope.notify.alert import Alert, severity
from stallscope.notify.delivery import Delivery
from stallscope.notify.settings import Severity

__all__ = ["Alerts", "Rules"]

_log = logging.getLogger(__name__)


class Rules(msgspec.Struct, frozen=True):
    """How alerts are made."""

    hold: float
    """Seconds that a notification waits for the verdict."""
    critical_threads: int
    link: str
    """Address for people; ``{id}`` is the incident's."""


class Alerts:
    """The alerts of one server. All calls are of one thread, and none blocks."""

    def __init__(self, delivery: Delivery, rules: Rules) -> None:
        self.delivery = delivery
        self.rules = rules
        self._of: dict[int, Alert] = {}
        """The latest alert of each incident that this agent records, by the incident's number."""
        self._again = itertools.count(2)
        self._severities: dict[str, Severity] = {}
        """Of the latest verdict of each trigger."""

    @property
    def open(self) -> list[Alert]:
        """Return the alerts that are not over, the oldest first."""
        return self.delivery.firing()

    def has(self, trigger: str) -> bool:
        """Return whether an alert in which a trigger fired is open."""
        return any(trigger in _triggers(alert) for alert in self.open)

    def take(self, event: str, number: int, incident: Incident, folder: Path | None) -> None:
        """Take what happened to an incident.

        ``open``: a trigger fired; ``verdict``: it has one; ``stall``: that is on disk too;
        ``ending``: it is recorded; ``end``: that is on disk too.
        """
        if event == "open":
            self._open(number, incident)
            return
        known = self._of.get(number)
        if known is None:
            return
        # Until it is on disk, a destination could be given a path that is not there yet.
        hold = 0.0 if event in ("stall", "end") else None
        self._update(number, self._with(known, incident, folder), hold)
        if event == "end":
            del self._of[number]

    def joined(self, number: int | None, fired: Fired) -> None:
        """Take a breach: it belongs to the alert of an incident, which it keeps open. Where that is
        over, it is another stall, though the incident goes on to record its recovery."""
        if number is None or (known := self._of.get(number)) is None:
            return
        if known.over:
            key = f"{known.key.partition('+')[0]}+{next(self._again)}"
            again = msgspec.structs.replace(
                known,
                key=key,
                over=False,
                triggers=(fired.trigger,),
                since_ns=fired.time_ns,
                end_ns=None,
            )
            self._of[number] = again
            self.delivery.open(again)
        elif fired.trigger not in known.triggers:
            triggers = (*known.triggers, fired.trigger)
            self._update(number, msgspec.structs.replace(known, triggers=triggers), None)

    def event(self, incident: Incident, severity: Severity) -> bool:
        """Take an event of EVENTS, and notify of it, unless its alert is open; return whether it is
        new."""
        name = incident.triggers[0].trigger
        if self.has(name):
            return False
        made = self._new(incident, None)
        key = f"{made.key}/{name}"
        self.delivery.open(msgspec.structs.replace(made, key=key, severity=severity))
        return True

    def recovered(self, incident: Incident, folder: Path) -> None:
        """Take an incident that an agent left open when it was killed: perhaps before anybody was
        notified.
        """
        if not self.delivery.knows(incident.id):
            self.delivery.open(self._new(incident, folder))

    def judge(
        self, statuses: Mapping[str, tuple[Status, int | None]], now_ns: int, wall_ns: int
    ) -> Iterator[Alert]:
        """End the alerts of which all triggers are clear; yield them.

        ``statuses``: by trigger, and since when it is clear, by the monotonic clock (``now_ns``).
        """
        for alert in self.open:
            names = _triggers(alert)
            known = [statuses[name] for name in names if name in statuses]
            if any(status is not Status.CLEAR for status, _ in known):
                continue
            if not known:
                _log.warning("%s is over: its triggers were removed (%s)", alert.key, _list(names))
            since = max((clear for _, clear in known if clear is not None), default=now_ns)
            yield self._end(alert, wall_ns - max(0, now_ns - since))

    def _end(self, alert: Alert, end_ns: int) -> Alert:
        end_ns = max(end_ns, alert.since_ns)
        incident = msgspec.structs.replace(alert.incident, end_ns=end_ns)
        over = msgspec.structs.replace(alert, incident=incident, over=True, end_ns=end_ns)
        for number, known in self._of.items():
            if known.key == alert.key:
                self._of[number] = over
        self.delivery.update(over, hold=None)
        return over

    def _open(self, number: int, incident: Incident) -> None:
        continued = self._left_open()
        if continued is None:
            made = self._of[number] = self._new(incident, None)
            self.delivery.open(made, hold=self._hold(made))
            return
        triggers = dict.fromkeys((*_triggers(continued), *_names(incident)))
        same = msgspec.structs.replace(continued, triggers=tuple(triggers))
        again = self._with(same, incident, None)
        self._update(number, again, self._hold(again))

    def _hold(self, alert: Alert) -> float:
        """Return how long its verdict is waited for: none makes it worse than critical."""
        return 0.0 if alert.severity == "critical" else self.rules.hold

    def _left_open(self) -> Alert | None:
        """Return the latest open alert of a stall that no incident records any longer."""
        taken = {alert.key for alert in self._of.values()}
        found = [
            alert
            for alert in self.open
            if alert.key not in taken and not set(_triggers(alert)) & set(EVENTS)
        ]
        return found[-1] if found else None

    def _update(self, number: int, alert: Alert, hold: float | None) -> None:
        self._of[number] = alert
        self.delivery.update(alert, hold=hold)

    def _new(self, incident: Incident, folder: Path | None) -> Alert:
        host = incident.target.host or socket.gethostname()
        made = Alert(
            f"{host}/{incident.id}",
            incident,
            host=host,
            severity="warning",
            triggers=_names(incident),
            since_ns=incident.start_ns,
        )
        return self._with(made, incident, folder)

    def _with(self, alert: Alert, incident: Incident, folder: Path | None) -> Alert:
        """Return an alert with what is known now of its incident; its severity never falls."""
        found = self._severity(incident)
        if alert.end_ns is not None:
            incident = msgspec.structs.replace(incident, end_ns=alert.end_ns)
        link = self.rules.link.replace("{id}", incident.id)
        return msgspec.structs.replace(
            alert,
            incident=incident,
            severity="critical" if "critical" in (found, alert.severity) else "warning",
            path=None if folder is None else str(folder),
            link=link or None,
        )

    def _severity(self, incident: Incident) -> Severity:
        """Return how bad it is; where limits let nobody see that, as bad as the time before."""
        found = severity(incident, self.rules.critical_threads)
        names = _names(incident)
        if incident.verdict is not None:
            self._severities.update(dict.fromkeys(names, found))
        elif any(note.code == "suppressed" for note in incident.notes):
            before = [self._severities.get(name, found) for name in names]
            found = "critical" if "critical" in before else found
        return found


def _names(incident: Incident) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fired.trigger for fired in incident.triggers))


def _triggers(alert: Alert) -> tuple[str, ...]:
    """Return what keeps an alert open; one of an earlier version says it by its incident."""
    return alert.triggers or _names(alert.incident)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none is known"

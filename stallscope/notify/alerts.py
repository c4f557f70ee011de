# SPDX-License-Identifier: Apache-2.0
"""From incidents to alerts: one alert for each stall, however many incidents and agents record it.

An incident ends before its stall where the agent is stopped or killed, a pass of ``cron`` is over,
or it is recorded for too long. Its alert then stays open. A new incident continues it; where the
triggers stay calm for a time, it is over.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallscope.model.incident import Incident
from stallscope.notify.alert import Alert, severity
from stallscope.notify.delivery import Delivery

__all__ = ["Alerts", "Rules"]

_log = logging.getLogger(__name__)

NS = 1_000_000_000
CALM_NS = 20 * NS
"""After this time without a breach, an alert that nobody continues is over."""
WRITTEN_SECONDS = 2.0
"""How long the end waits until the incident is on disk."""
UNFINISHED = ("pass-ended", "goes-on")
"""Notes of incidents that end before their stall."""


class Rules(msgspec.Struct, frozen=True):
    """How alerts are made."""

    hold: float
    """Seconds that a notification waits for the verdict."""
    critical_threads: int
    link: str
    """Address for people; ``{id}`` is the incident's."""


class Alerts:
    """The alerts of one server. All calls are of one thread, and none blocks."""

    def __init__(self, delivery: Delivery, rules: Rules, now_ns: Callable[[], int]) -> None:
        self.delivery = delivery
        self.rules = rules
        self._now_ns = now_ns
        self._keys: dict[int, str] = {}
        """Of incidents that this agent records, by number."""
        self._calm_since = now_ns()

    def take(self, event: str, number: int, incident: Incident, folder: Path | None) -> None:
        """Take what happened to an incident.

        ``open``: a trigger fired; ``verdict``: it has one; ``stall``: that is on disk too;
        ``ending``: it is over; ``end``: that is on disk too.
        """
        if event == "open":
            self._open(number, incident)
            return
        key = self._keys.get(number)
        if key is None:
            return
        over = event in ("ending", "end") and not self._goes_on(incident)
        alert = self._alert(key, incident, folder, over=over)
        # Until it is on disk, a destination could be given a path that is not there yet.
        hold = {"stall": 0.0, "ending": WRITTEN_SECONDS, "end": 0.0}.get(event)
        self.delivery.update(alert, hold=hold)
        if event == "end":
            del self._keys[number]

    def recovered(self, incident: Incident, folder: Path) -> None:
        """Take an incident that an agent left open when it was killed: perhaps before anybody was
        notified.
        """
        if not self.delivery.knows(incident.id):
            alert = self._alert(self._key(incident), incident, folder)
            self.delivery.open(alert)

    def calm(self, breached: bool) -> None:
        """Take whether a trigger is breached now; end the alerts that nobody continues."""
        now = self._now_ns()
        if breached:
            self._calm_since = now
        if now - self._calm_since < CALM_NS or not self.delivery.loaded.is_set():
            return
        for alert in self._detached():
            self.delivery.update(msgspec.structs.replace(alert, over=True))

    def _open(self, number: int, incident: Incident) -> None:
        self._calm_since = self._now_ns()
        detached = self._detached()
        if detached:
            key = detached[-1].key
            self._keys[number] = key
            self.delivery.update(self._alert(key, incident, None), hold=self.rules.hold)
            return
        key = self._keys[number] = self._key(incident)
        self.delivery.open(self._alert(key, incident, None), hold=self.rules.hold)

    def _detached(self) -> list[Alert]:
        """Return open alerts without an incident that goes on."""
        taken = set(self._keys.values())
        return [alert for alert in self.delivery.firing() if alert.key not in taken]

    def _goes_on(self, incident: Incident) -> bool:
        return incident.interrupted or any(note.code in UNFINISHED for note in incident.notes)

    def _key(self, incident: Incident) -> str:
        return f"{_host(incident)}/{incident.id}"

    def _alert(
        self, key: str, incident: Incident, folder: Path | None, *, over: bool = False
    ) -> Alert:
        link = self.rules.link.replace("{id}", incident.id)
        return Alert(
            key,
            incident,
            host=_host(incident),
            severity=severity(incident, self.rules.critical_threads),
            over=over,
            path=None if folder is None else str(folder),
            link=link or None,
        )


def _host(incident: Incident) -> str:
    return incident.target.host or socket.gethostname()

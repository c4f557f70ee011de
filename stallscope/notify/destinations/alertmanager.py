# SPDX-License-Identifier: Apache-2.0
"""Alertmanager, API v2: ``POST /api/v2/alerts``.

An alert that fires has no times: Alertmanager uses its own clock, and a wrong clock of this host
does not resolve it. Its end needs a time; it is that of Alertmanager's clock, from its answers.
"""

from __future__ import annotations

import base64
import datetime
import re

from stallscope.notify import http
from stallscope.notify.alert import Alert, Event, body, facts, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import AlertmanagerSettings, Severity, secret

__all__ = ["Alertmanager", "labels"]

_NOT_LABEL = re.compile(r"[^A-Za-z0-9_]")


class Alertmanager(Base[AlertmanagerSettings]):
    updates = True

    def __init__(self, settings: AlertmanagerSettings) -> None:
        super().__init__(settings)
        self.repeat = settings.repeat
        self.least_firing = settings.least_firing
        self._url = secret(settings, "url").rstrip("/") + "/api/v2/alerts"
        self._headers = _authorization(settings)
        self._ahead = 0.0

    def send(self, event: Event, alert: Alert) -> None:
        """Post the alert, or its end."""
        value: dict[str, object] = {
            "annotations": {
                "summary": title(alert),
                "description": "\n".join(body(alert)),
                **{_label(name): text for name, text in facts(alert)},
            },
        }
        if alert.link is not None:
            value["generatorURL"] = alert.link
        if event == "end":
            now = datetime.datetime.now(datetime.UTC)
            end = now + datetime.timedelta(seconds=self._ahead)
            value["endsAt"] = end.isoformat()
        # Labels are the identity: an alert that became critical is another one to Alertmanager. The
        # first fires on: its receiver would be notified that the stall is over.
        severities = dict.fromkeys((alert.first or alert.severity, alert.severity))
        values = [
            {"labels": {**labels(alert, severity), **self.settings.labels}, **value}
            for severity in severities
        ]
        answer = http.post_json(self._url, values, self.settings.deadline, self._headers)
        self._ahead = answer.ahead_seconds


def labels(alert: Alert, severity: Severity) -> dict[str, str]:
    """Return what identifies the alert: these never change while it fires."""
    target = alert.incident.target
    return {
        "alertname": "DatabaseStall",
        "instance": alert.host,
        "server": target.name,
        "stall": alert.key,
        "severity": severity,
    }


def _label(name: str) -> str:
    return _NOT_LABEL.sub("_", name)


def _authorization(settings: AlertmanagerSettings) -> dict[str, str]:
    token = secret(settings, "token")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if settings.user:
        pair = f"{settings.user}:{secret(settings, 'password')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}

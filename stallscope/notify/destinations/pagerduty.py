# SPDX-License-Identifier: Apache-2.0
"""PagerDuty, Events API v2. ``dedup_key`` makes one incident of all events of a stall."""

from __future__ import annotations

import datetime

from stallscope.notify import http
from stallscope.notify.alert import Alert, Event, facts, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import PagerDutySettings, secret

__all__ = ["PagerDuty"]

_LONGEST_KEY = 255
_LONGEST_SUMMARY = 1024


class PagerDuty(Base[PagerDutySettings]):
    updates = True

    def __init__(self, settings: PagerDutySettings) -> None:
        super().__init__(settings)
        self._key = secret(settings, "routing_key")

    def send(self, event: Event, alert: Alert) -> None:
        """Trigger the alert, or resolve it."""
        value: dict[str, object] = {
            "routing_key": self._key,
            "event_action": "resolve" if event == "end" else "trigger",
            "dedup_key": alert.key[:_LONGEST_KEY],
        }
        if event != "end":
            start = datetime.datetime.fromtimestamp(alert.incident.start_ns / 1e9, datetime.UTC)
            value["payload"] = {
                "summary": title(alert)[:_LONGEST_SUMMARY],
                "source": alert.host,
                "severity": alert.severity,
                "timestamp": start.isoformat(),
                "component": alert.incident.target.name,
                "class": "stall",
                "custom_details": dict(facts(alert)),
            }
            value["client"] = "stallscope"
            if alert.link is not None:
                value["links"] = [{"href": alert.link, "text": "the incident"}]
        http.post_json(self.settings.url, value, self.settings.deadline)

# SPDX-License-Identifier: Apache-2.0
"""Opsgenie, Alert API. ``alias`` makes one alert of all requests about a stall."""

from __future__ import annotations

import urllib.parse

import msgspec

from stallscope.notify import http
from stallscope.notify.alert import Alert, Event, body, facts, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import OpsgenieSettings, secret

__all__ = ["Opsgenie"]

_LONGEST_ALIAS = 512
_LONGEST_MESSAGE = 130
_PRIORITIES = {"critical": "P1", "warning": "P3"}


class Opsgenie(Base[OpsgenieSettings]):
    # A second request with the alias of an open alert only counts it: what is known later is a
    # note, which would page nobody and change nothing.
    def __init__(self, settings: OpsgenieSettings) -> None:
        super().__init__(settings)
        self._headers = {"Authorization": f"GenieKey {secret(settings, 'api_key')}"}

    def send(self, event: Event, alert: Alert) -> None:
        """Create the alert, or close it."""
        alias = alert.key[:_LONGEST_ALIAS]
        url = self.settings.url
        value: dict[str, object] = {"source": f"stallscope on {alert.host}"}
        if event == "end":
            url = f"{url}/{urllib.parse.quote(alias, safe='')}/close?identifierType=alias"
        else:
            found = facts(alert)
            value |= {
                "message": title(alert)[:_LONGEST_MESSAGE],
                "alias": alias,
                "description": "\n".join(body(alert)),
                "details": dict(found),
                "entity": alert.incident.target.name,
                "priority": _PRIORITIES[alert.severity],
                "tags": ["stallscope", *self.settings.tags],
                "responders": [{"name": team, "type": "team"} for team in self.settings.teams],
            }
        http.post_json(url, msgspec.json.encode(value), self.settings.deadline, self._headers)

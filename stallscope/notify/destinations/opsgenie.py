# SPDX-License-Identifier: Apache-2.0
"""Opsgenie, Alert API. ``alias`` makes one alert of all requests about a stall."""

from __future__ import annotations

import urllib.parse

from stallscope.base.encoding import utf8
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
    # note, which would page nobody and change nothing. But a priority can rise.
    def __init__(self, settings: OpsgenieSettings) -> None:
        super().__init__(settings)
        self._headers = {"Authorization": f"GenieKey {secret(settings, 'api_key')}"}

    def send(self, event: Event, alert: Alert) -> None:
        """Create the alert, raise its priority, or close it."""
        alias = alert.key[:_LONGEST_ALIAS]
        of_alert = f"{self.settings.url}/{urllib.parse.quote(utf8(alias), safe='')}"
        url, method = self.settings.url, "POST"
        value: dict[str, object] = {"source": f"stallscope on {alert.host}"}
        if event == "end":
            url = f"{of_alert}/close?identifierType=alias"
        elif event == "update":
            url, method = f"{of_alert}/priority?identifierType=alias", "PUT"
            value = {"priority": _PRIORITIES[alert.severity]}
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
        http.post_json(url, value, self.settings.deadline, self._headers, method=method)

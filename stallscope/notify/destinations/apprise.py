# SPDX-License-Identifier: Apache-2.0
"""Any of the services that the library Apprise knows."""

from __future__ import annotations

from typing import Any

from stallscope.base import extras
from stallscope.base.errors import UsageError
from stallscope.notify.alert import Alert, Event, body, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.receiver import SendError
from stallscope.notify.settings import AppriseSettings, secret

__all__ = ["AppriseService"]


class AppriseService(Base[AppriseSettings]):
    def __init__(self, settings: AppriseSettings) -> None:
        super().__init__(settings)
        extras.require("apprise", f"destination {self.name}")
        import apprise

        self._service: Any = apprise.Apprise()
        if not self._service.add(secret(settings, "url")):
            raise UsageError(f"destination {self.name}: Apprise knows no service with this url")

    def send(self, event: Event, alert: Alert) -> None:
        """Send a message."""
        over = event == "end"
        text = "\n".join(body(alert))
        kind = "success" if over else "failure" if alert.severity == "critical" else "warning"
        head = ("over: " if over else "") + title(alert)
        if not self._service.notify(title=head, body=text, notify_type=kind):
            raise SendError("Apprise could not deliver it")

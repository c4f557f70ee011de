# SPDX-License-Identifier: Apache-2.0
"""A command of the user, with what is known in its environment."""

from __future__ import annotations

from stallscope.collectors.programs import run_for_event
from stallscope.notify import variables
from stallscope.notify.alert import Alert, Event
from stallscope.notify.destinations.base import Base
from stallscope.notify.receiver import SendError
from stallscope.notify.settings import CommandDestination

__all__ = ["Command"]


class Command(Base[CommandDestination]):
    def send(self, event: Event, alert: Alert) -> None:
        """Run it. An exit code other than 0 is a failure: it is run again."""
        known = variables.of_alert(event, alert)
        why = run_for_event(self.settings.run, known, self.settings.deadline)
        if why is not None:
            raise SendError(why)

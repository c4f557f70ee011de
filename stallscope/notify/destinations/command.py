# SPDX-License-Identifier: Apache-2.0
"""A command of the user, with what is known in its environment."""

from __future__ import annotations

from stallscope.base.priority import lower_priority
from stallscope.base.text import one_line
from stallscope.collectors.programs import Program
from stallscope.notify import variables
from stallscope.notify.alert import Alert, Event
from stallscope.notify.destinations.base import Base
from stallscope.notify.receiver import SendError
from stallscope.notify.settings import CommandDestination

__all__ = ["Command"]


class Command(Base[CommandDestination]):
    def send(self, event: Event, alert: Alert) -> None:
        """Run it. An exit code other than 0 is a failure: it is run again."""
        command, seconds = self.settings.run, self.settings.deadline
        known = variables.of_alert(event, alert)
        try:
            program = Program(command, output=False, environment=variables.inherited(known))
        except OSError as error:
            raise SendError(f"cannot run {command[0]}: {error.strerror}") from error
        lower_priority(program.pid)
        result = program.run(seconds, leave_children=True)
        if result.code is None:
            raise SendError(f"it took more than {seconds:g} s and was ended")
        if result.code:
            said = one_line(result.err.decode("utf-8", "backslashreplace"), 200)
            raise SendError(f"it ended with {result.code}: {said}")

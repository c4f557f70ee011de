# SPDX-License-Identifier: Apache-2.0
"""A command of the user, with what is known in its environment."""

from __future__ import annotations

import os

from stallscope.base.errors import UsageError
from stallscope.base.sending import SendError
from stallscope.base.text import one_line
from stallscope.collectors.programs import run_for_event
from stallscope.notify import variables
from stallscope.notify.alert import Alert, Event
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import CommandDestination, named

__all__ = ["Command", "check_program"]


def check_program(settings: CommandDestination) -> None:
    """Raise a UsageError where there is no program that can be run."""
    program = settings.run[0]
    if not (os.path.isfile(program) and os.access(program, os.X_OK)):
        raise UsageError(
            f"destination {named(settings)}: run: {one_line(program)} is not a program that this"
            " user can execute"
        )


class Command(Base[CommandDestination]):
    def __init__(self, settings: CommandDestination) -> None:
        super().__init__(settings)
        check_program(settings)

    def send(self, event: Event, alert: Alert) -> None:
        """Run it. An exit code other than 0 is a failure: it is run again."""
        known = variables.of_alert(event, alert)
        why = run_for_event(self.settings.run, known, self.settings.deadline)
        if why is not None:
            raise SendError(why)

# SPDX-License-Identifier: Apache-2.0
"""Hooks: commands at points of the agent's life (``[plugin]``). A failing one never affects the
agent. They are no notifications: nobody runs one again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from stallscope.base.priority import lower_priority
from stallscope.base.text import one_line
from stallscope.collectors.programs import Program
from stallscope.model.incident import Incident
from stallscope.notify import variables

__all__ = ["MAX_RUNNING", "Hooks"]

_log = logging.getLogger(__name__)

MAX_RUNNING = 4
"""The most hooks at a time; more are counted, and not started, so that hanging ones do not pile
up."""


class Hooks:
    """Runs the hook of an event, in a thread of its own, with a deadline."""

    def __init__(self, commands: Mapping[str, Sequence[str]], seconds: float) -> None:
        self._commands = dict(commands)
        self._seconds = seconds
        self._running = threading.Semaphore(MAX_RUNNING)
        self.failed = 0
        """How many failed, or were not started since too many were running."""

    def run(self, event: str, incident: Incident | None, folder: Path | None) -> None:
        """Run the hook of an event, where there is one."""
        command = self._commands.get(event)
        if not command:
            return
        known = variables.of_incident(event, incident, folder)
        if not self._running.acquire(blocking=False):
            self._fail(
                f"plugin {command[0]}: {MAX_RUNNING} are running already; this one was not started"
            )
            return

        def work() -> None:
            try:
                why = self._run(command, known)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            finally:
                self._running.release()
            if why is not None:
                self._fail(f"plugin {command[0]}: {why}")

        threading.Thread(target=work, name="hook", daemon=True).start()

    def _fail(self, text: str) -> None:
        self.failed += 1
        _log.error("%s", one_line(text))

    def _run(self, command: Sequence[str], known: dict[str, str]) -> str | None:
        try:
            program = Program(command, output=False, environment=variables.inherited(known))
        except OSError as error:
            return f"cannot run {command[0]}: {error.strerror}"
        lower_priority(program.pid)
        result = program.run(self._seconds, leave_children=True)
        if result.code is None:
            return f"it took more than {self._seconds:g} s and was ended"
        if result.code == 0:
            return None
        said = one_line(result.err.decode("utf-8", "backslashreplace"), 200)
        return f"it ended with {result.code}: {said}"

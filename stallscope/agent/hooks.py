# SPDX-License-Identifier: Apache-2.0
"""Hooks: commands at points of the agent's life (``[plugin]``). A failing one never affects the
agent. They are no notifications: nobody runs one again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from stallscope.base.text import one_line
from stallscope.collectors.programs import run_for_event
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
                why = run_for_event(command, known, self._seconds)
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

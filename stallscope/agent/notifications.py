# SPDX-License-Identifier: Apache-2.0
"""Notify of incidents by a command and a webhook. A failing one never affects the agent."""

from __future__ import annotations

import logging
import os
import shlex
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from stallscope.base.errors import UsageError
from stallscope.base.priority import lower_priority
from stallscope.base.text import one_line, without_surrogates
from stallscope.collectors.programs import Program
from stallscope.model.incident import Incident

__all__ = ["NOTIFIED", "Notifier", "command_words", "environment", "webhook_url"]

_log = logging.getLogger(__name__)

COMMAND_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0
NOTIFIED = ("stall", "end")
MAX_RUNNING = 4
"""The most calls at a time; more are counted, and not started, so that hanging ones do not pile
up."""


def command_words(text: str) -> tuple[str, ...]:
    """Split a command line as a shell would, without being one. Raises: UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--notify-command: {error}: {one_line(text, 80)}") from None
    if not words:
        raise UsageError("--notify-command: no command in it")
    return words


def webhook_url(text: str) -> str:
    """Check a URL. Raises: UsageError."""
    try:
        parts = urllib.parse.urlsplit(text)
        parts.port  # noqa: B018  # raises where the port is no number
    except ValueError as error:
        raise UsageError(f"--webhook: {error}: {one_line(text, 80)}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isprintable():
        raise UsageError(f"--webhook takes http://… or https://…, not {one_line(text, 80)!r}")
    return text


def environment(event: str, incident: Incident | None, folder: Path | None) -> dict[str, str]:
    """Return the variables of a command, in addition to the agent's own."""
    if incident is None:
        return {"STALLSCOPE_EVENT": event}
    verdict = incident.verdict
    fired = incident.triggers[0] if incident.triggers else None
    found = {
        "EVENT": event,
        "INCIDENT": incident.id,
        "PATH": "" if folder is None else str(folder),
        "SERVER": incident.target.name,
        "PID": str(incident.target.pid),
        "TRIGGER": fired.trigger if fired else "",
        "WHY": one_line(fired.why) if fired else "",
        "CAPTURES": str(len(incident.captures)),
        "VERDICT": (verdict.signature or "unknown") if verdict else "",
        "TITLE": verdict.title if verdict else "",
        "CONFIDENCE": f"{verdict.confidence:.2f}" if verdict else "",
    }
    return {f"STALLSCOPE_{name}": value.replace("\0", "") for name, value in found.items()}


class Notifier:
    """Runs commands and posts to webhooks. Each call is in a thread of its own, with a deadline.

    ``plugins``: commands by event.
    """

    def __init__(
        self,
        command: tuple[str, ...] | None,
        webhook: str | None,
        *,
        plugins: Mapping[str, Sequence[str]] | None = None,
        plugin_seconds: float = COMMAND_SECONDS,
        command_seconds: float = COMMAND_SECONDS,
        webhook_seconds: float = WEBHOOK_SECONDS,
    ) -> None:
        self._command = command
        self._webhook = webhook
        self._plugins = dict(plugins or {})
        self._plugin_seconds = plugin_seconds
        self._command_seconds = command_seconds
        self._webhook_seconds = webhook_seconds
        self._running = threading.Semaphore(MAX_RUNNING)
        self.failed = 0
        """How many calls failed, or were not made since too many were running."""

    def notify(self, event: str, incident: Incident | None, folder: Path | None) -> None:
        """Run the plugin of an event; notify of ``stall`` and ``end``."""
        variables = environment(event, incident, folder)
        plugin = self._plugins.get(event)
        if plugin:
            self._start(
                f"plugin {plugin[0]}", lambda: self._run(plugin, variables, self._plugin_seconds)
            )
        if event not in NOTIFIED:
            return
        command = self._command
        if command is not None:
            self._start(
                "--notify-command", lambda: self._run(command, variables, self._command_seconds)
            )
        if self._webhook is not None:
            body = {
                "event": event,
                "path": None if folder is None else str(folder),
                "incident": incident,
            }
            data = msgspec.json.encode(without_surrogates(msgspec.to_builtins(body)))
            self._start("--webhook", lambda: self._post(data))

    def _start(self, what: str, call: Callable[[], str | None]) -> None:
        if not self._running.acquire(blocking=False):
            self._fail(f"{what}: {MAX_RUNNING} are running already; this one was not started")
            return

        def work() -> None:
            try:
                why = call()
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            finally:
                self._running.release()
            if why is not None:
                self._fail(f"{what}: {why}")

        threading.Thread(target=work, name="notify", daemon=True).start()

    def _fail(self, text: str) -> None:
        self.failed += 1
        _log.error("%s", one_line(text))

    def _run(self, command: Sequence[str], variables: dict[str, str], seconds: float) -> str | None:
        try:
            program = Program(command, output=False, environment={**os.environ, **variables})
        except OSError as error:
            return f"cannot run {command[0]}: {error.strerror}"
        lower_priority(program.pid)
        result = program.run(seconds, leave_children=True)
        if result.code is None:
            return f"it took more than {seconds:g} s and was ended"
        if result.code == 0:
            return None
        said = one_line(result.err.decode("utf-8", "backslashreplace"), 200)
        return f"it ended with {result.code}: {said}"

    def _post(self, data: bytes) -> str | None:
        # Imported here: with TLS and mail headers it takes a tenth of the agent's memory.
        from stallscope.agent import webhook

        assert self._webhook is not None
        return webhook.post(self._webhook, data, self._webhook_seconds)

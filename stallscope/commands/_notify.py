# SPDX-License-Identifier: Apache-2.0
"""Destinations of notifications: from options and settings to what delivers them."""

from __future__ import annotations

import argparse
import shlex
import urllib.parse
from pathlib import Path

import msgspec

from stallscope.base import trust
from stallscope.base.errors import UsageError
from stallscope.base.text import one_line
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.notify import destinations
from stallscope.notify.alerts import Alerts, Rules
from stallscope.notify.delivery import Delivery
from stallscope.notify.outbox import Outbox
from stallscope.notify.receiver import Receiver
from stallscope.notify.settings import CommandDestination, Destination, WebhookSettings, check_url

__all__ = [
    "add_arguments",
    "alerts",
    "command_words",
    "exposed",
    "receivers",
    "rules",
    "settings_of",
]

OUTBOX = "outbox.sqlite"


def add_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options that are destinations."""
    parser.add_argument(
        "--notify-command",
        metavar="COMMAND",
        help="run COMMAND for each stall and its end, without a shell; see its STALLSCOPE_…"
        " variables",
    )
    parser.add_argument(
        "--webhook",
        metavar="URL",
        help="post each stall and its end to URL as JSON; all users can read a command line",
    )
    parser.add_argument(
        "--webhook-file",
        metavar="FILE",
        help="the same, to the URL in FILE; without a slash, a credential of systemd",
    )


def alerts(args: argparse.Namespace, settings: AgentSettings, folder: Path) -> Alerts:
    """Return what notifies; ``folder`` keeps what is not delivered. Raises: UsageError."""
    delivery = Delivery(Outbox(folder / OUTBOX), receivers(args, settings))
    return Alerts(delivery, rules(settings))


def rules(settings: AgentSettings) -> Rules:
    """Return how alerts are made."""
    notify = settings.notify
    return Rules(notify.hold, notify.critical_threads, notify.link)


def receivers(args: argparse.Namespace, settings: AgentSettings) -> list[Receiver]:
    """Return the destinations, ready to send. Raises: UsageError."""
    return [destinations.make(one) for one in settings_of(args, settings)]


def settings_of(args: argparse.Namespace, settings: AgentSettings) -> list[Destination]:
    """Return the settings of all destinations: those of options win over those of ``[notify]``."""
    notify = settings.notify
    found = list(settings.destinations)
    command = tuple(notify.command)
    if args.notify_command is not None:
        command = command_words(args.notify_command)
    webhook = args.webhook or notify.webhook or ""
    if args.webhook is not None and (why := check_url(args.webhook)):
        raise UsageError(f"--webhook: {why}")
    if args.webhook is not None and args.webhook_file is not None:
        raise UsageError("give either --webhook or --webhook-file, not both")
    if command:
        found.append(CommandDestination("command", deadline=notify.deadline, run=list(command)))
    if args.webhook_file is not None:
        webhook = ""
    if webhook or args.webhook_file:
        url_file = args.webhook_file or ""
        found.append(
            WebhookSettings("webhook", deadline=notify.deadline, url=webhook, url_file=url_file)
        )
    names = [one.name for one in found]
    # A destination of the file may have the same name: both get their notifications.
    return [
        msgspec.structs.replace(one, name=f"{one.name}-{number}")
        if one.name in names[:number] and one.name
        else one
        for number, one in enumerate(found)
    ]


def exposed(webhook: str | None) -> tuple[str, ...]:
    """Return a warning where an address on the command line seems to have a secret in it."""
    if webhook is None:
        return ()
    parts = urllib.parse.urlsplit(webhook)
    if "@" not in parts.netloc and not parts.query and parts.path in ("", "/"):
        return ()
    return (
        "--webhook: all users of this host can read its address in the list of processes: give it"
        " by --webhook-file FILE, or in a configuration",
    )


def command_words(text: str) -> tuple[str, ...]:
    """Split a command line as a shell would, without being one. Raises: UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--notify-command: {error}") from None
    if not words:
        raise UsageError("--notify-command: no command in it")
    if "/" not in words[0]:
        found = trust.find_program(words[0])
        if found is None:
            raise UsageError(f"--notify-command: no program {one_line(words[0], 80)!r} in PATH")
        words = (found, *words[1:])
    why = trust.command_reason(words)
    if why is not None:
        raise UsageError(f"--notify-command: {why}")
    return words

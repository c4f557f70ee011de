# SPDX-License-Identifier: Apache-2.0
"""Send a test notification to the destinations of a configuration."""

from __future__ import annotations

import argparse
import concurrent.futures
import socket
import sys
import time
from pathlib import Path

import msgspec

from stallscope.base.errors import Exit, UsageError
from stallscope.base.sending import SendError
from stallscope.base.text import clean
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.commands import _config, _notify
from stallscope.model.incident import Fired, Incident, TargetEntry, Verdict
from stallscope.notify.alert import Alert, Event
from stallscope.notify.receiver import Receiver

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope notify --test --config /etc/stallscope/db1.toml
  stallscope notify --test --config /etc/stallscope/db1.toml --only pager
  stallscope notify --test --webhook-file /etc/stallscope/webhook
  stallscope notify --test --bare --notify-command /usr/local/bin/page
"""

_EVENTS: tuple[Event, ...] = ("stall", "end")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--test",
        action="store_true",
        required=True,
        help="send the stall of a server called TEST, and its end, to each destination",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration with the destinations"
    )
    parser.add_argument(
        "--triggers", type=Path, metavar="FILE", help="the file with the destinations"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this destination"
    )
    parser.add_argument(
        "--bare",
        action="store_true",
        help="send an alert of which nothing is known: no verdict, statement, trigger and path",
    )
    _notify.add_arguments(parser)


def run(args: argparse.Namespace) -> Exit:
    """Send to all at once; print a line for each."""
    for warning in _notify.exposed(args.webhook):
        print(f"stallscope: {warning}", file=sys.stderr)
    found = _notify.receivers(args, _settings(args))
    unknown = set(args.only) - {receiver.name for receiver in found}
    if unknown:
        names = ", ".join(receiver.name for receiver in found) or "none"
        raise UsageError(f"--only {min(unknown)}: no destination has this name; there are: {names}")
    chosen = [receiver for receiver in found if not args.only or receiver.name in args.only]
    if not chosen:
        raise UsageError(
            "no destination: give --config FILE, --triggers FILE, --webhook or --notify-command"
        )
    works = True
    alert = _alert()
    if args.bare:
        incident = msgspec.structs.replace(alert.incident, triggers=(), verdict=None)
        alert = msgspec.structs.replace(alert, incident=incident)
    with concurrent.futures.ThreadPoolExecutor(len(chosen)) as pool:
        for receiver, why in zip(
            chosen, pool.map(lambda one: _try(one, alert), chosen), strict=True
        ):
            works = works and why is None
            print(f"{receiver.name}: {'sent, with its end' if why is None else clean(why)}")
    return Exit.DONE if works else Exit.FAILED


def _settings(args: argparse.Namespace) -> AgentSettings:
    if args.config is None:
        return triggerfile.defaults() if args.triggers is None else triggerfile.load(args.triggers)
    if args.triggers is not None:
        raise UsageError("--config and --triggers cannot be combined: the file has all triggers")
    server = _config.read(args.config).servers[0]
    for names in (("notify_command",), ("webhook", "webhook_file")):
        if all(getattr(args, name) is None for name in names):
            for name in names:
                setattr(args, name, getattr(server.options, name))
    return server.agent


def _try(receiver: Receiver, alert: Alert) -> str | None:
    """Send; return why that failed."""
    for event in _EVENTS:
        if event == "end" and not receiver.resolves:
            continue
        try:
            receiver.send(event, alert)
        except SendError as error:
            return f"not sent ({event}): {error}"
        except Exception as error:
            return f"not sent ({event}): internal error: {type(error).__name__}: {error}"
    return None


def _alert() -> Alert:
    now, host = time.time_ns(), socket.gethostname()
    incident = Incident(
        id=f"test-{now}",
        start_ns=now,
        end_ns=now,
        target=TargetEntry(0, "TEST", host=host),
        triggers=(Fired("test", "somebody ran stallscope notify --test", now),),
        verdict=Verdict(
            "test",
            "This is a test: no server stalls",
            1.0,
            threads=1,
            blocker="thread 1, connection 1, user test",
            statement="SELECT ?",
            remedy="nothing: this is a test",
            ending="SELECT 'this is a test';",
            effect="it changes nothing: this is a test",
        ),
    )
    return Alert(f"{host}/test-{now}", incident, host, "warning")

# SPDX-License-Identifier: Apache-2.0
"""The options of ``watch`` and ``cron``. Those of both are also the keys of a configuration file:
stallscope.commands._config reads them from here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stallscope.agent.output import LOG_FORMATS, LOG_LEVELS
from stallscope.collectors.triggers import triggerfile
from stallscope.commands import _listen, _notify, _options, _ship, _sql, _store
from stallscope.commands._numbers import time_between

__all__ = [
    "NOT_KEYS",
    "TARGET",
    "add_cron_arguments",
    "add_watch_arguments",
    "defaults",
    "keys",
]

NOT_KEYS = frozenset({"config", "wait", "once", "dry-run"})
"""Options that are about one run: a configuration file does not have them."""
TARGET = "target"
"""The key of ``--pid``."""

_MAX_SECONDS = 366 * 86400.0
_TABLES = {"server": "server", "SQL": "sql"}
"""Tables of a configuration file by group of options; the others are in ``[agent]``."""


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``watch``. Their defaults are not in the result of the parser: a
    configuration file comes between them and the command line."""
    _add_arguments(parser)
    _listen.add_listen_argument(parser)
    how = parser.add_argument_group("time")
    how.add_argument(
        "--poll-interval",
        type=time_between(0.05, 60),
        metavar="SECONDS",
        help="polling interval, 0.05 to 60 (default: poll-interval of the triggers, 1)",
    )
    how.add_argument(
        "--duration",
        type=time_between(0.1, _MAX_SECONDS),
        metavar="SECONDS",
        help="end after SECONDS (default: never)",
    )
    how.add_argument("--once", action="store_true", help="evaluate triggers once and exit")
    how.add_argument(
        "--dry-run",
        action="store_true",
        help="show which triggers would fire and how close the others are; capture nothing",
    )
    how.add_argument(
        "--wait",
        action="store_true",
        help="wait for a server that does not run, also with --once, --duration or a pid, and while"
        " several match",
    )
    _set_aside_defaults(parser)


def add_cron_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cron``, in the same way."""
    _add_arguments(parser)
    parser.add_argument(
        "--seconds",
        type=time_between(1, 86400),
        default=50.0,
        metavar="SECONDS",
        help="length of the pass (default 50, since cron starts one each minute)",
    )
    parser.add_argument(
        "--fail-on-stall",
        action="store_true",
        help="exit with code 4 if a stall was found, or one of before goes on",
    )
    _set_aside_defaults(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of both commands."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read options, servers and triggers from FILE (TOML); options given here win",
    )
    server = parser.add_argument_group("server")
    server.add_argument("-p", "--pid", metavar="PID|NAME", help="process id or program name")
    _options.add_place_arguments(server)
    server.add_argument(
        "--server-user",
        metavar="USER",
        help="the user, by name or number, that the server runs as: programs of others are not"
        " watched, and get no password",
    )
    _sql.add_sql_arguments(parser)
    what = parser.add_argument_group("captures")
    what.add_argument(
        "--raw-sql",
        action="store_true",
        help="also keep statements with their literals, in a separate file",
    )
    what.add_argument("--triggers", type=Path, metavar="FILE", help="your own triggers (TOML)")
    _store.add_dest_argument(what)
    _options.add_inproc_arguments(what)
    _options.add_pack_argument(what)
    _options.add_uprobes_argument(what)
    what.add_argument(
        "--always-on",
        action="store_true",
        help="keep the wait programs attached: they count every wait, and add to every system call"
        " of the host; without it they are attached while a wait is past half of its threshold,"
        " and shorter waits are not counted",
    )
    what.add_argument(
        "--no-probe", action="store_true", help="do not use stallscope-probe: take no stacks"
    )
    what.add_argument(
        "--allow-gdb",
        action="store_true",
        help="use gdb, which stops the server, while the probe does not work",
    )
    _options.add_force_kernel_argument(what)
    _options.add_signatures_argument(what)
    notify = parser.add_argument_group("notifications")
    notify.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    _notify.add_arguments(notify)
    _ship.add_argument(notify)
    notify.add_argument(
        "--prometheus",
        type=Path,
        metavar="FILE",
        help="write metrics to FILE for node exporter's textfile collector",
    )
    notify.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=LOG_FORMATS[0],
        help="format of the log on standard error (default text)",
    )
    notify.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=LOG_LEVELS[0],
        help="least level of what is logged (default info)",
    )


def _set_aside_defaults(parser: argparse.ArgumentParser) -> None:
    found = {}
    for action in parser._actions:
        if action.default is not argparse.SUPPRESS:
            found[action.dest] = action.default
            action.default = argparse.SUPPRESS
    parser.set_defaults(option_defaults=found)


def _parsers() -> Iterator[argparse.ArgumentParser]:
    for add in (add_watch_arguments, add_cron_arguments):
        parser = argparse.ArgumentParser(add_help=False)
        add(parser)
        yield parser


def defaults() -> dict[str, Any]:
    """Return the defaults of all options of both commands, by their names in the namespace."""
    return {
        name: value
        for parser in _parsers()
        for name, value in parser.get_default("option_defaults").items()
    }


def keys() -> Mapping[str, Mapping[str, argparse.Action]]:
    """Return the options that are keys of a configuration file, by table and key.

    An option whose name is a key of the trigger file (``poll-interval``) is in no table.
    """
    found: dict[str, dict[str, argparse.Action]] = {"server": {}, "sql": {}, "agent": {}}
    for parser in _parsers():
        of_groups = {
            action.dest: _TABLES.get(str(group.title), "agent")
            for group in parser._action_groups
            for action in group._group_actions
        }
        for action in parser._actions:
            name = action.option_strings[-1].removeprefix("--")
            if name not in NOT_KEYS and name not in triggerfile.KEYS:
                key = TARGET if name == "pid" else name
                found[of_groups[action.dest]].setdefault(key, action)
    return found

# SPDX-License-Identifier: Apache-2.0
"""Watch a server continuously, and store an incident for each stall."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

from stallscope.agent.environment import Plan
from stallscope.agent.loop import Agent
from stallscope.agent.onlyagent import only_agent
from stallscope.base.errors import Exit, UsageError
from stallscope.collectors.triggers.dryrun import TriggerRun, sentence
from stallscope.commands import _agent, _listen
from stallscope.commands._numbers import time_between
from stallscope.reporters.exposition import MetricsPage

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope watch -p mysqld
  stallscope watch -p mariadbd --triggers /etc/stallscope/triggers.toml --dest /var/lib/stallscope
  stallscope watch -p mysqld --dry-run --duration 60
  stallscope watch -p mysqld --json --notify-command '/usr/local/bin/page-me --stall'

SIGTERM and Ctrl-C end it; SIGHUP reloads its triggers. A server has one agent in a store: a second
one says who watches the server, and exits with 1.
"""

_MAX_SECONDS = 366 * 86400.0
_POLLS_OF_ONCE = 2
"""Rates need two samples."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _agent.add_arguments(parser)
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


def run(args: argparse.Namespace) -> Exit:
    """Watch until the end."""
    if args.once and args.duration is not None:
        raise UsageError("--once and --duration cannot be combined")
    plan = Plan(
        seconds=args.duration,
        polls=_POLLS_OF_ONCE if args.once else None,
        captures=not args.dry_run,
        poll_interval=args.poll_interval,
        raw_sql=args.raw_sql,
    )
    page = None if args.listen is None else MetricsPage()
    with (
        _agent.agent(args, plan, page) as (agent, store),
        _agent.signals(agent.events.put, reload=True),
        # A dry run stores nothing, and can be made beside the agent.
        nullcontext() if args.dry_run else only_agent(store.dest, agent.server),
        _listen.listening(args.listen, page, [agent], store.dest, args.signatures),
    ):
        agent.run()
    if args.dry_run:
        _print_states(agent)
    return Exit.DONE


def _print_states(agent: Agent) -> None:
    states = {state.name: state for state in agent.engine.states()}
    for settings in agent.settings.triggers:
        fired = tuple(one for one in agent.fired if one.trigger == settings.name)
        print(f"{settings.name}: {sentence(TriggerRun(settings, states[settings.name], fired))}")
    sys.stdout.flush()

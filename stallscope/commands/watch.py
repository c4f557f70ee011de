# SPDX-License-Identifier: Apache-2.0
"""Watch a server continuously, and store an incident for each stall."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from stallscope.agent.environment import Plan
from stallscope.agent.loop import Agent
from stallscope.agent.onlyagent import only_agent
from stallscope.agent.supervisor import Policy
from stallscope.base.errors import Exit, UsageError
from stallscope.collectors.processes import Server
from stallscope.collectors.triggers.dryrun import TriggerRun, sentence
from stallscope.commands import _agent, _agentoptions, _config

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope watch -p mysqld
  stallscope watch -p mariadbd --triggers /etc/stallscope/triggers.toml --dest /var/lib/stallscope
  stallscope watch --config /etc/stallscope/orders.toml
  stallscope watch -p mysqld --dry-run --duration 60
  stallscope watch -p mysqld --json --notify-command '/usr/local/bin/page-me --stall'

SIGTERM and Ctrl-C end it; SIGHUP reloads its configuration and triggers. A server has one agent in
a store: a second one says who watches the server, and exits with 1.
"""

_POLLS_OF_ONCE = 2
"""Rates need two samples."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _agentoptions.add_watch_arguments(parser)


def run(args: argparse.Namespace) -> Exit:
    """Watch until the end."""
    configuration = _config.load(args)
    options = configuration.options
    if options.once and options.duration is not None:
        raise UsageError("--once and --duration cannot be combined")
    plan = Plan(
        seconds=options.duration,
        polls=_POLLS_OF_ONCE if options.once else None,
        captures=not options.dry_run,
        poll_interval=options.poll_interval,
        raw_sql=options.raw_sql,
    )
    endless = options.duration is None and not options.once
    waits = options.wait or (options.config is not None and endless)
    by_pid = options.pid is not None and options.pid.isdecimal()
    policy = Policy(
        waits=waits or (endless and not by_pid), several_are_error=not waits, restarts=endless
    )
    with (
        # A dry run stores nothing, and can be made beside the agent.
        _agent.supervisor(
            configuration, args, plan, policy, _nothing if options.dry_run else only_agent
        ) as supervisor,
        _agent.signals(supervisor.ask, reload=True),
    ):
        supervisor.run()
    if options.dry_run:
        for server in supervisor.servers:
            if server.agent is not None:
                if len(supervisor.servers) > 1:
                    print(f"{server.name}:")
                _print_states(server.agent)
    return Exit.DONE


def _nothing(dest: Path, server: Server) -> AbstractContextManager[None]:
    return nullcontext()


def _print_states(agent: Agent) -> None:
    states = {state.name: state for state in agent.engine.states()}
    for settings in agent.settings.triggers:
        fired = tuple(one for one in agent.fired if one.trigger == settings.name)
        print(f"{settings.name}: {sentence(TriggerRun(settings, states[settings.name], fired))}")
    sys.stdout.flush()

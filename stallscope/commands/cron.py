# SPDX-License-Identifier: Apache-2.0
"""Watch a server for a limited time, one run at a time: cron starts it every minute."""

from __future__ import annotations

import argparse

from stallscope.agent.environment import Plan
from stallscope.agent.onlyagent import only_pass
from stallscope.agent.supervisor import Policy
from stallscope.base.errors import Exit
from stallscope.commands import _agent, _agentoptions, _config

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope cron -p mysqld --dest /var/lib/stallscope
  stallscope cron -p mariadbd --seconds 20 --fail-on-stall

If the previous pass for this server is still running, or `stallscope watch` watches it, cron does
nothing and exits with 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _agentoptions.add_cron_arguments(parser)


def run(args: argparse.Namespace) -> Exit:
    """Make one pass at each server."""
    configuration = _config.load(args)
    options = configuration.options
    plan = Plan(seconds=options.seconds, raw_sql=options.raw_sql)
    policy = Policy(waits=False, skips=True, restarts=False)
    with (
        _agent.supervisor(
            configuration, args, plan, policy, only_pass, continues=True
        ) as supervisor,
        _agent.signals(supervisor.ask, reload=False),
    ):
        supervisor.run()
    stall = any(server.stalls for server in supervisor.servers)
    return Exit.STALL if stall and options.fail_on_stall else Exit.DONE

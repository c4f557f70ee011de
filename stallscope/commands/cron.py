# SPDX-License-Identifier: Apache-2.0
"""Watch a server for a limited time, one run at a time: cron starts it every minute."""

from __future__ import annotations

import argparse
import logging

from stallscope.agent import cronstate, onlyagent
from stallscope.agent.environment import Plan
from stallscope.base.errors import Exit
from stallscope.commands import _agent
from stallscope.commands._numbers import time_between
from stallscope.store.serverstate import ServerBusy

__all__ = ["EPILOG", "add_arguments", "run"]

_log = logging.getLogger(__name__)

EPILOG = """\
examples:
  stallscope cron -p mysqld --dest /var/lib/stallscope
  stallscope cron -p mariadbd --seconds 20 --fail-on-stall

If the previous pass for this server is still running, or `stallscope watch` watches it, cron does
nothing and exits with 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _agent.add_arguments(parser)
    parser.add_argument(
        "--seconds",
        type=time_between(1, 86400),
        default=50.0,
        metavar="SECONDS",
        help="length of the pass (default 50, since cron starts one each minute)",
    )
    parser.add_argument(
        "--fail-on-stall", action="store_true", help="exit with code 4 if a stall was found"
    )


def run(args: argparse.Namespace) -> Exit:
    """Make one pass."""
    plan = Plan(seconds=args.seconds, raw_sql=args.raw_sql)
    with _agent.agent(args, plan) as (agent, store), _agent.signals(agent.events.put, reload=False):
        try:
            with onlyagent.only_pass(store.dest, agent.server) as state:
                if state is not None:
                    cronstate.load(state, agent)
                agent.run()
                if state is not None:
                    cronstate.save(state, agent)
        except ServerBusy as busy:
            _log.warning("%s; exiting", busy)
            return Exit.DONE
    stall = agent.incidents.stalls > 0
    return Exit.STALL if stall and args.fail_on_stall else Exit.DONE

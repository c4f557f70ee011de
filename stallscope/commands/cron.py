# SPDX-License-Identifier: Apache-2.0
"""Watch a server for a limited time, one run at a time: cron starts it every minute."""

from __future__ import annotations

import argparse
import logging

from stallscope.agent import cronstate
from stallscope.agent.environment import Plan
from stallscope.base.errors import Exit
from stallscope.commands import _agent
from stallscope.commands._numbers import time_between
from stallscope.store import locking

__all__ = ["EPILOG", "add_arguments", "run"]

_log = logging.getLogger(__name__)

EPILOG = """\
examples:
  stallscope cron -p mysqld --dest /var/lib/stallscope
  stallscope cron -p mariadbd --seconds 20 --fail-on-stall

If the previous pass is still running, cron does nothing and exits with 0.
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
            held = cronstate.lock(store.dest)
        except locking.Locked:
            _log.warning("the previous pass is still running; exiting")
            return Exit.DONE
        try:
            cronstate.load(store.dest, agent)
            agent.run()
            cronstate.save(store.dest, agent)
        finally:
            held.release()
    stall = agent.incidents.stalls > 0
    return Exit.STALL if stall and args.fail_on_stall else Exit.DONE

# SPDX-License-Identifier: Apache-2.0
"""Every server's stalls in one place: tables, shipping what a store has, questions, a page."""

from __future__ import annotations

import argparse

from stallscope.base.errors import Exit, UsageError
from stallscope.base.subcommands import Command, add_command
from stallscope.commands.fleet_question import Asking
from stallscope.fleet.questions.asking import QUESTIONS

__all__ = ["EPILOG", "PARTS", "add_arguments", "part_module", "run"]

EPILOG = """\
examples:
  stallscope fleet init file:///var/lib/fleet
  stallscope fleet ship --dest /var/lib/stallscope --to file:///var/lib/fleet
  stallscope fleet now --from clickhouse+https://dba@ch1:8443/stallscope
  stallscope fleet signatures --since 7d --json
  stallscope fleet report -o fleet.html --since 1d
"""

PARTS = {
    "init": "create the tables of a fleet, or bring them to this version",
    "ship": "send the incidents that a store already has",
    "report": "write one HTML page of the fleet",
    "prune": "remove what is older than a number of days",
    "compact": "make one file a day of a folder's files",
    **{name: question.about.rstrip(".") for name, question in QUESTIONS.items()},
}
"""What the fleet is asked, after what is done with it."""


def part_module(name: str) -> Command:
    """Import one part."""
    match name:
        case "init":
            from stallscope.commands import fleet_init

            return fleet_init
        case "ship":
            from stallscope.commands import fleet_ship

            return fleet_ship
        case "report":
            from stallscope.commands import fleet_report

            return fleet_report
        case "prune":
            from stallscope.commands import fleet_prune

            return fleet_prune
        case "compact":
            from stallscope.commands import fleet_compact

            return fleet_compact
    if name in QUESTIONS:
        return Asking(QUESTIONS[name])
    raise UsageError(f"no part {name!r} of fleet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the parts, each with its options."""
    parts = parser.add_subparsers(dest="part", metavar="NAME", required=True)
    for name, what in PARTS.items():
        add_command(parts, name, what, part_module(name))


def run(args: argparse.Namespace) -> Exit:
    """Run one part."""
    return part_module(args.part).run(args)

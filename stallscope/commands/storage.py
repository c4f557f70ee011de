# SPDX-License-Identifier: Apache-2.0
"""What a server's storage does: the price of syncs, where bytes go, what the cache holds."""

from __future__ import annotations

import argparse

from stallscope.base.errors import Exit, UsageError
from stallscope.base.subcommands import Command, add_command

__all__ = ["EPILOG", "PARTS", "add_arguments", "part_module", "run"]

EPILOG = """\
examples:
  stallscope storage sync -p mysqld      what a durable commit costs
  stallscope storage writes -p mysqld    where the written bytes go
  stallscope storage cache -p mysqld     what the page cache holds of its files
"""

PARTS = {
    "sync": "measure what syncs cost, and predict commits a second at each durability setting",
    "writes": "show where the bytes go that a server writes, per commit and per row",
    "cache": "show what the page cache holds of a server's files, and drop old logs from it",
}
"""Each has a module in stallscope.commands; ``part_module`` imports one."""


def part_module(name: str) -> Command:
    """Import one part."""
    match name:
        case "sync":
            from stallscope.commands import storage_sync

            return storage_sync
        case "writes":
            from stallscope.commands import storage_writes

            return storage_writes
        case "cache":
            from stallscope.commands import storage_cache

            return storage_cache
    raise UsageError(f"no part {name!r} of storage")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the parts, each with its options."""
    parts = parser.add_subparsers(dest="part", metavar="|".join(PARTS), required=True)
    for name, what in PARTS.items():
        add_command(parts, name, what, part_module(name))


def run(args: argparse.Namespace) -> Exit:
    """Run one part."""
    return part_module(args.part).run(args)

# SPDX-License-Identifier: Apache-2.0
"""A command of a command line that has several: its module, and its parser."""

from __future__ import annotations

import argparse
from typing import Any, Protocol

from stallscope.base.errors import Exit

__all__ = ["Command", "add_command"]


class Command(Protocol):
    """The interface of the modules of stallscope.commands."""

    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> Exit: ...


def add_command(
    commands: argparse._SubParsersAction[Any], name: str, what: str, command: Command
) -> None:
    """Add a command with its options. ``what``: its line in the list of commands."""
    parser = commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=command.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="print the traceback of errors")

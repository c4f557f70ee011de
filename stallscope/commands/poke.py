# SPDX-License-Identifier: Apache-2.0
"""``stallscope poke``."""

from __future__ import annotations

import argparse

from stallscope.base.errors import Exit, StallscopeError
from stallscope.commands import _options

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope poke -p mysqld
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)


def run(args: argparse.Namespace) -> Exit:
    """Not built yet."""
    raise StallscopeError("poke: not built yet")

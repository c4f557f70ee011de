# SPDX-License-Identifier: Apache-2.0
"""What commands with SQL share: their options, and the login."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallscope.base.errors import UsageError
from stallscope.commands._numbers import time_between
from stallscope.server.families import family

if TYPE_CHECKING:
    from stallscope.collectors.processes import Server
    from stallscope.collectors.sql.login import Login
    from stallscope.collectors.sql.servers import ServerLogin

__all__ = [
    "add_deadline_argument",
    "add_sql_arguments",
    "asked_for",
    "is_asked",
    "login",
    "mysql_login",
    "one_of",
]

DEADLINE = 1.0
POSTGRES = "postgres"
_FILES = ("defaults-file", "defaults-extra-file", "defaults-group-suffix", "login-path")


def add_sql_arguments(
    parser: argparse.ArgumentParser, *, optional: bool = True
) -> argparse._ArgumentGroup:
    """Add the options that say how to log in; where SQL is ``optional``, ``--no-sql`` too."""
    group = parser.add_argument_group("SQL")
    if optional:
        group.add_argument("--no-sql", action="store_true", help="do not connect to the server")
    group.add_argument("--defaults-file", metavar="FILE", help="read only this option file")
    group.add_argument(
        "--defaults-extra-file", metavar="FILE", help="read this option file after the usual ones"
    )
    group.add_argument(
        "--defaults-group-suffix", metavar="NAME", help="also read groups with this suffix"
    )
    group.add_argument("--login-path", metavar="NAME", help="read this group of .mylogin.cnf")
    return group


def add_deadline_argument(group: argparse._ArgumentGroup) -> None:
    """Add the option for the deadline of an answer."""
    group.add_argument(
        "--sql-deadline",
        type=time_between(0.001, 60),
        default=DEADLINE,
        metavar="SECONDS",
        help=f"to connect and get all answers (default {DEADLINE:g})",
    )


def asked_for(args: argparse.Namespace) -> bool:
    """Return whether the user gave credentials: then a failed login is an error."""
    given = (args.defaults_file, args.defaults_extra_file, args.login_path)
    if getattr(args, "no_sql", False):
        if any(given):
            raise UsageError("--no-sql and option files contradict each other")
        return False
    return any(given)


def is_asked(server: Server) -> bool:
    """Return whether a server is asked over SQL."""
    from stallscope.collectors.sql.servers import FAMILIES

    return family(server.main.exe, server.main.comm) in FAMILIES


def one_of(servers: Sequence[Server]) -> Server | None:
    """Return the one server that is asked over SQL; None: there is none, or more than one."""
    found = [server for server in servers if is_asked(server)]
    return found[0] if len(found) == 1 else None


def login(args: argparse.Namespace, server: Server | None) -> tuple[ServerLogin, tuple[str, ...]]:
    """Return how to log in, and notes on what was ignored. Raises: UsageError."""
    if server is None or family(server.main.exe, server.main.comm) != POSTGRES:
        return mysql_login(args, server)
    from stallscope.collectors.sql import postgres_login

    given = [f"--{name}" for name in _FILES if getattr(args, name.replace("-", "_"), None)]
    notes = (f"{', '.join(given)}: PostgreSQL has no option files (docs/sql.md)",) if given else ()
    found, more = postgres_login.find(server)
    return found, (*notes, *more)


def mysql_login(args: argparse.Namespace, server: Server | None) -> tuple[Login, tuple[str, ...]]:
    """Return how to log in to a MySQL or MariaDB, and notes on what was ignored. Raises:
    UsageError."""
    from stallscope.collectors.sql import credentials
    from stallscope.collectors.sql.optionfiles import Sources

    sources = Sources(
        defaults_file=args.defaults_file,
        defaults_extra_file=args.defaults_extra_file,
        group_suffix=args.defaults_group_suffix,
        login_path=args.login_path,
    )
    return credentials.find(sources, server)

# SPDX-License-Identifier: Apache-2.0
"""Explain a server's status numbers, and which of them are a problem."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.commands import _common, _options, _sql
from stallscope.server.families import family

if TYPE_CHECKING:
    from stallscope.analyzers.workload import Report
    from stallscope.server.status import StatusSample

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope status
  stallscope status -p mariadbd --seconds 60
  stallscope status --defaults-file /etc/mysql/monitor.cnf --json
  mysqladmin ext >before; sleep 60; mysqladmin ext >after; stallscope status before after
  stallscope status 2026_11_21_14_50_12-mysqladmin       # as pt-stalk saved it
"""

_MAX_BYTES = 1 << 30
_DEADLINE = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="one or two saved outputs of SHOW GLOBAL STATUS instead of a live server",
    )
    _options.add_target_arguments(parser)
    _sql.add_sql_arguments(parser, optional=False)
    parser.add_argument(
        "--seconds",
        type=_common.time_between(0.1, 3600),
        default=10.0,
        metavar="N",
        help="time between the two samples (default 10)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON (stallscope.status/1)")
    output.add_argument("--full", action="store_true", help="explain each row")


def run(args: argparse.Namespace) -> Exit:
    """StatusSample twice, and print what it means."""
    from stallscope.reporters import lines, status

    if len(args.files) > 2:
        raise UsageError("give one or two files: before and after")
    if args.files and (args.pid or _common.selector(args)):
        raise UsageError("give files or a server (-p), not both")
    report = _of_files(args.files) if args.files else _of_server(args)
    if args.json:
        print(status.dumps(report, tuple(map(str, args.files))))
    else:
        width = lines.width_of(sys.stdout)
        lines.print_lines(status.render(report, width=width, full=args.full), sys.stdout)
    return Exit.DONE


def _of_files(files: list[Path]) -> Report:
    from stallscope.analyzers import statusfile, workload
    from stallscope.server.status import StatusSample

    samples: list[dict[str, float]] = []
    for path in files:
        found = statusfile.parse(_text(path))
        if not found:
            raise StallscopeError(
                f"{path}: no SHOW GLOBAL STATUS in it (a table, tabs or \\G of mysqladmin or mysql)"
            )
        samples += found
    first, last = StatusSample(samples[0]), StatusSample(samples[-1])
    return workload.report(first if len(samples) > 1 else None, last)


def _text(path: Path) -> str:
    from stallscope.base import inputfile

    parts: list[bytes] = []
    size = 0
    for chunk in inputfile.chunks(path):
        size += len(chunk)
        if size > _MAX_BYTES:
            raise StallscopeError(f"{path}: larger than {_MAX_BYTES >> 30} GiB: split it")
        parts.append(chunk)
    return b"".join(parts).decode("utf-8", "backslashreplace")


def _of_server(args: argparse.Namespace) -> Report:
    from stallscope.analyzers import workload
    from stallscope.collectors import processes
    from stallscope.collectors.host import hostnumbers
    from stallscope.collectors.sql import workload as source
    from stallscope.collectors.sql.connection import Connection
    from stallscope.reporters import progress

    selector = _common.selector(args)
    server = None
    if args.pid or selector:
        servers = processes.resolve(args.pid, selector)[1]
        if len(servers) != 1:
            raise UsageError("give one -p: the report covers one server")
        server = servers[0]
        if family(server.main.exe, server.main.comm) == "postgres":
            raise UsageError("status explains the numbers of MySQL and MariaDB alone")
    login, notes = _sql.mysql_login(args, server)
    for note in notes:
        print(f"stallscope: {note}", file=sys.stderr)
    connection = Connection(login)
    host = hostnumbers.HostNumbers(server)
    try:
        first: StatusSample = connection.ask(source.sample, _DEADLINE)
        host.begin()
        with progress.while_waiting(f"waiting {args.seconds:g} s for the second sample"):
            time.sleep(args.seconds)
        second = host.added(connection.ask(source.sample, _DEADLINE))
        return workload.report(first, second)
    finally:
        connection.close()
        host.close()

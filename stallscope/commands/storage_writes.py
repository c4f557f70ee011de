# SPDX-License-Identifier: Apache-2.0
"""``stallscope storage writes``: where the bytes go that a server writes."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.base.errors import Exit, UsageError
from stallscope.base.text import one_line
from stallscope.commands import _common, _options, _sql

if TYPE_CHECKING:
    from stallscope.collectors.processes import Server
    from stallscope.collectors.sql.asking import ServerConnection
    from stallscope.model.storagecounters import StorageChanges, StorageCounters
    from stallscope.model.storagewrites import WritesReport

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope storage writes -p mysqld
  stallscope storage writes -p mariadbd --seconds 300 -o before.json
  stallscope diff before.json after.json
  stallscope storage writes -p postgres --report writes.html
"""

_LEAST, _MOST = 0.5, 86_400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    _sql.add_deadline_argument(_sql.add_sql_arguments(parser))
    parser.add_argument(
        "--seconds",
        type=_common.time_between(_LEAST, _MOST),
        default=60.0,
        metavar="N",
        help="how long to count (default 60); Ctrl-C ends it earlier",
    )
    _options.add_force_kernel_argument(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="print JSON (stallscope.storage-writes/1)"
    )
    output.add_argument("--full", action="store_true", help="show all files that are kept")
    output.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="save the JSON, for diff and report"
    )
    output.add_argument(
        "--report", type=Path, metavar="FILE", help="write an HTML page with a picture over time"
    )
    output.add_argument("--force", action="store_true", help="replace files that exist")


def run(args: argparse.Namespace) -> Exit:
    """Count, and print where the bytes went."""
    from stallscope.base import atomicfile
    from stallscope.reporters import lines, storagewrites

    for path in filter(None, (args.output, args.report)):
        atomicfile.check_can_create(path, force=args.force)
    if args.output is not None and args.output == args.report:
        raise UsageError("--output and --report name the same file")
    if args.report is not None:
        from stallscope.base import extras

        extras.require("report", "stallscope storage writes --report")
    report = _measured(args)
    if args.output is not None:
        data = storagewrites.dumps(report) + "\n"
        atomicfile.write(args.output, [data.encode()], force=args.force)
    if args.report is not None:
        from stallscope.reporters.html import assets
        from stallscope.reporters.html.storagepage import render

        page = render(report, assets.load())
        atomicfile.write(args.report, [page], force=args.force)
    if args.json:
        print(storagewrites.dumps(report))
    else:
        width = lines.width_of(sys.stdout)
        shown = storagewrites.render(report, width=width, full=args.full)
        lines.print_lines(shown, sys.stdout)
    partial = report.bytes is None or report.process_write_bytes is None or bool(report.lost)
    return _common.exit_code(partial=partial, stall=False, fail_on_stall=False)


def _measured(args: argparse.Namespace) -> WritesReport:
    from stallscope.analyzers import storagewrites as analysis
    from stallscope.collectors import processes
    from stallscope.collectors.host import storagewrites
    from stallscope.reporters import progress

    _, servers = processes.resolve(args.pid, _common.selector(args))
    if len(servers) != 1:
        raise UsageError("give one -p: the report covers one server")
    server = servers[0]
    with ExitStack() as stack:
        counting = _Counting(args, server)
        stack.callback(counting.close)
        what = f"counting what {server.name} (pid {server.main.pid}) writes for {args.seconds:g} s"
        with progress.while_waiting(what):
            measured = storagewrites.measure(
                server,
                args.seconds,
                force_kernel=args.force_kernel,
                first=counting.first,
                last=counting.last,
            )
    return analysis.report(measured, counting.changes(), counting.why_not)


class _Counting:
    """The server's own counters at the start and at the end, as far as it can be asked."""

    def __init__(self, args: argparse.Namespace, server: Server) -> None:
        """Connect. Raises: SqlError where the user gave credentials and they fail."""
        self.why_not = ""
        self._connection: ServerConnection[Any] | None = None
        self._deadline = args.sql_deadline
        self._samples: list[StorageCounters] = []
        named = _sql.asked_for(args)
        if args.no_sql:
            self.why_not = "--no-sql"
        elif not _sql.is_asked(server):
            self.why_not = f"{server.name} is not asked over SQL"
        else:
            self._connect(args, server, named)

    def _connect(self, args: argparse.Namespace, server: Server, named: bool) -> None:
        from stallscope.collectors.sql import servers
        from stallscope.collectors.sql.failures import SqlError

        login, notes = _sql.login(args, server)
        for note in notes:
            print(f"stallscope: {one_line(note)}", file=sys.stderr)
        connection = servers.connect(login).connection
        try:
            facts = connection.open(self._deadline)
        except SqlError as error:
            connection.close()
            if named:
                raise
            self.why_not = str(error)
            return
        if facts.listener_pid not in (None, 0, *server.pids):
            connection.close()
            self.why_not = f"process {facts.listener_pid} answered, which is another server"
            return
        self._connection = connection

    def first(self) -> None:
        """Read them when counting has begun."""
        self._read()

    def last(self) -> None:
        """Read them when it has ended."""
        self._read()

    def _read(self) -> None:
        from stallscope.collectors.sql.failures import SqlError
        from stallscope.collectors.sql.storagecounters import read_counters

        if self._connection is None or self.why_not:
            return
        try:
            self._samples.append(self._connection.ask(read_counters, self._deadline))
        except (SqlError, ValueError, TypeError, IndexError) as error:
            self.why_not = str(error)

    def changes(self) -> StorageChanges | None:
        """Return what happened between the two, None where one of them is missing."""
        from stallscope.analyzers import storagechanges

        if len(self._samples) != 2:
            return None
        return storagechanges.changes(*self._samples)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()

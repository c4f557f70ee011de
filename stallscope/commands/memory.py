# SPDX-License-Identifier: Apache-2.0
"""Show which stacks and connections make the memory of a live server grow."""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.collectors import memory, processes, snapshot
from stallscope.collectors.calibration import layouts
from stallscope.collectors.waits import ended_by_signals
from stallscope.commands import _common, _options, _sql
from stallscope.model.capture import SESSIONS, Thread
from stallscope.model.memory import MemoryReport, encode
from stallscope.model.sessions import Moment, Sessions, annotate, from_memory, redact
from stallscope.reporters import progress
from stallscope.server.statements import normalize

if TYPE_CHECKING:
    from stallscope.collectors.processes import Server

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope memory -p mysqld
  stallscope memory -p mariadbd --seconds 300 -o growth.json
  stallscope report growth.json -o growth.html
  stallscope memory -p 1234 --json | jq -r '.stacks[0].frames[]'

Ctrl-C ends it early and prints what there is.
"""

_MAX_SECONDS = 86400.0
_MAX_TOP = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    what = parser.add_argument_group("collection")
    what.add_argument(
        "--seconds",
        type=_common.time_between(0.1, _MAX_SECONDS),
        default=30.0,
        metavar="N",
        help="how long to watch (default 30)",
    )
    what.add_argument(
        "--stacks",
        type=_common.count,
        metavar="N",
        help="copy at most N stacks in a second (default 1000)",
    )
    what.add_argument(
        "--max-stack",
        type=_common.count,
        metavar="BYTES",
        help="copy at most BYTES of each stack (default and most: 32768)",
    )
    what.add_argument(
        "--debug-dir",
        type=Path,
        metavar="DIR",
        help="directory of separate debug files, by build-id",
    )
    _options.add_pack_argument(what)
    sql = _sql.add_sql_arguments(parser)
    _sql.add_deadline_argument(sql)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON (stallscope.memory/1)")
    output.add_argument(
        "--top", type=_top, default=10, metavar="N", help="show N stacks and threads (default 10)"
    )
    output.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="also save the result as JSON, for `stallscope report`",
    )
    output.add_argument("--force", action="store_true", help="replace FILE if it exists")


def _top(text: str) -> int:
    value = _common.count(text)
    if not 1 <= value <= _MAX_TOP:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_TOP}")
    return value


def run(args: argparse.Namespace) -> Exit:
    """Record, compare, name, print."""
    from stallscope.reporters import lines
    from stallscope.reporters import memory as reporter

    if args.output is not None:
        atomicfile.check_can_create(args.output, force=args.force)
    _sql.asked_for(args)
    servers = processes.resolve(args.pid, _common.selector(args))[1]
    if len(servers) != 1:
        raise UsageError("memory watches one server: give one -p")
    report = _measure(args, servers[0])
    if args.json:
        print(reporter.dumps(report))
    else:
        width = lines.width_of(sys.stdout)
        lines.print_lines(reporter.render(report, width=width, top=args.top), sys.stdout)
    sys.stdout.flush()
    if args.output is not None:
        atomicfile.write(args.output, [encode(report)], force=args.force)
    return Exit.DONE if report.complete else Exit.PARTIAL


def _measure(args: argparse.Namespace, server: Server) -> MemoryReport:
    from stallscope.analyzers import memory as analyzer

    options = memory.Options(
        seconds=args.seconds,
        debug_dir=args.debug_dir,
        pack_dirs=_options.pack_dirs(args),
        max_stack=args.max_stack,
        stacks=args.stacks,
    )
    pid = server.main.pid
    over = threading.Event()
    with ended_by_signals(over.set), progress.while_waiting(f"watching {server.name}"):
        growth = memory.record(pid, options, ended=over.is_set)
    notes = []
    if len(server.pids) > 1:
        notes.append(
            f"{server.name} has {len(server.pids)} processes: this is pid {pid} alone; give -p"
            " with the number of another one"
        )
    threads: dict[int, Thread] = {}
    if not growth.ended:
        threads, why = _threads(args, server)
        notes += why
    return analyzer.report(growth, threads, server=server.name, notes=notes)


def _threads(args: argparse.Namespace, server: Server) -> tuple[dict[int, Thread], list[str]]:
    """Return the threads by TID with their connections, as far as these can be known, and why they
    are not."""
    notes: list[str] = []
    pids = (server.main.pid,)
    layout = layouts.of_servers((server,))
    try:
        taken = snapshot.take(
            pids,
            (server,),
            snapshot.Options(kernel_stacks=False, passes=1, layout=layout.text),
        )
    except StallscopeError as error:
        return {}, [f"whose connection a thread is was not read: {one_line(str(error), 300)}"]
    sessions = from_memory(taken.memory, None)
    if not args.no_sql and _sql.is_asked(server):
        try:
            sessions = _ask(args, server, taken.memory)
        except StallscopeError as error:
            if _sql.asked_for(args):
                raise
            notes.append(one_line(str(error), 300))
    capture = annotate(taken.capture, redact(sessions, normalize))
    notes += [one_line(note.message, 300) for note in capture.notes if note.code == SESSIONS]
    return {thread.tid: thread for thread in capture.threads}, notes


def _ask(args: argparse.Namespace, server: Server, found: tuple[Moment, ...]) -> Sessions:
    """Return the connections as SQL has them. Raises: StallscopeError where nobody can log in."""
    from stallscope.collectors.sql import servers

    login, _ = _sql.login(args, server)
    sql = servers.connect(login)
    with closing(sql.connection):
        return msgspec.structs.replace(sql.fetch(args.sql_deadline), memory=found)

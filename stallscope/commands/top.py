# SPDX-License-Identifier: Apache-2.0
"""Watch a live server: threads, who waits on what, locks and files, incidents."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base import extras
from stallscope.base.errors import Exit, UsageError
from stallscope.commands import _common, _options, _sql

if TYPE_CHECKING:
    from stallscope.collectors.processes import Server
    from stallscope.screens.events import Source
    from stallscope.screens.sessions import Asking

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope top -p mysqld
  stallscope top -p 4711 --capture-dir /var/tmp
  stallscope top --replay /var/lib/stallscope/incidents/20261121T145012.345Z-mariadbd-4711
  stallscope top --replay stall.jsonl.zst

keys: space pause, / filter, t threads, b blocker, s sort, k kill, Enter stack or incident,
c capture, F1 or ? help, q quit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    what = parser.add_argument_group("collection")
    what.add_argument(
        "--interval",
        type=_common.time_between(0.2, 60),
        default=1.0,
        metavar="SECONDS",
        help="interval between readings of waits (default 1)",
    )
    what.add_argument(
        "--stacks",
        type=_common.time_between(0.5, 3600),
        metavar="SECONDS",
        help="interval between captures (default: what 0.6%% of one CPU allows, 1 to 30)",
    )
    _options.add_inproc_arguments(what)
    _options.add_pack_argument(what)
    _options.add_uprobes_argument(what)
    _options.add_force_kernel_argument(what)
    _sql.add_deadline_argument(_sql.add_sql_arguments(parser))
    parser.add_argument(
        "--read-only", action="store_true", help="send nothing to the server: the key k is off"
    )
    other = parser.add_argument_group("files")
    other.add_argument(
        "--dest", type=Path, metavar="DIR", help="the store of the incidents to show"
    )
    other.add_argument(
        "--capture-dir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="directory for captures taken with the key c (default: the current one)",
    )
    other.add_argument(
        "--replay",
        type=Path,
        action="append",
        default=[],
        metavar="FILE|INCIDENT",
        help="show captures or an incident instead of a live server",
    )
    _options.add_signatures_argument(other)


def run(args: argparse.Namespace) -> Exit:
    """Show the screens until the user quits."""
    selected = args.pid or _common.selector(args)
    if args.replay and selected:
        raise UsageError("give -p or --replay, not both")
    if args.replay and args.ring is not None:
        raise UsageError("give --ring or --replay, not both")
    if not args.capture_dir.is_dir():
        raise UsageError(f"--capture-dir {args.capture_dir} is not a directory")
    # Textual draws on standard error.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError("top needs a terminal; `stallscope snap` prints to a pipe")
    extras.require("top", "stallscope top")
    source = _replay(args) if args.replay else _live(args)
    # Textual prefers them to the terminal's size, and would not notice when that changes.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Imported here: it is large, and not needed where the server was not found.
    from stallscope.screens.app import Top
    from stallscope.screens.state import State

    app = Top(
        source,
        State(", ".join(source.titles), replay=bool(args.replay)),
        args.capture_dir.absolute(),
        dest=args.dest,
        read_only=args.read_only,
    )
    try:
        app.run()
    finally:
        source.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
    if app.failure is not None:
        raise app.failure
    return Exit.DONE


def _live(args: argparse.Namespace) -> Source:
    from stallscope.analyzers import catalog
    from stallscope.commands import _rings
    from stallscope.screens.live import LiveOptions, LiveSource

    signatures = catalog.load(args.signatures)
    pids, servers = _rings.resolve(args, args.pid, _common.selector(args))
    options = LiveOptions(
        interval=args.interval,
        captures=args.stacks,
        uprobes=not args.no_uprobes,
        force_kernel=args.force_kernel,
        dest=args.dest,
        backend=_rings.backend(args),
        ring=args.ring,
        pack_dirs=_options.pack_dirs(args),
    )
    return LiveSource(pids, servers, signatures, options, _sessions(args, servers))


def _sessions(args: argparse.Namespace, servers: tuple[Server, ...]) -> Asking | None:
    """Return the login of the server; None where it has no SQL."""
    from stallscope.screens.sessions import Asking

    named = _sql.asked_for(args)
    server = _sql.one_of(servers)
    if args.no_sql or (server is None and not named):
        return None
    try:
        login, _ = _sql.login(args, server)
    except UsageError:
        if named:
            raise
        return None
    return Asking(login, args.sql_deadline)


def _replay(args: argparse.Namespace) -> Source:
    from stallscope.analyzers import catalog
    from stallscope.screens import replay

    return replay.source(args.replay, catalog.load(args.signatures))

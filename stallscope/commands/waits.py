# SPDX-License-Identifier: Apache-2.0
"""Watch the waits of a live server as they occur."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from stallscope.base.errors import Exit, UsageError
from stallscope.collectors import processes, waits
from stallscope.collectors.processes import Server
from stallscope.commands import _common, _numbers, _options, _rings
from stallscope.commands._metricsfile import WaitsFile, notice
from stallscope.commands._waitviews import Raw, Screens, View
from stallscope.model.waitkinds import GROUPS, KINDS
from stallscope.model.waitlines import WaitLine

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope waits -p mysqld
  stallscope waits -p mysqld --duration 60 --kind lock --threshold 50
  stallscope waits -p mariadbd --threshold fsync=20 --threshold mutex=5 --events
  stallscope waits -p mysqld --json --duration 10 | jq -c '.kinds.fsync'
  stallscope waits --follow mysqld --prometheus /var/lib/node_exporter/stallscope.prom

Ctrl-C ends it and prints the totals.
"""

_MAX_SECONDS = 366 * 86400
_MAX_TOP = 1000
_LEAST_ASKED = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    what = parser.add_argument_group("collection")
    what.add_argument(
        "--kind",
        action="append",
        default=[],
        choices=(*KINDS, *GROUPS),
        metavar="K",
        help=f"only this kind: {', '.join(KINDS)}; or a group: {', '.join(GROUPS)}",
    )
    what.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=_numbers.threshold,
        metavar="[K=]MS",
        help="take stacks of longer waits, of all kinds or of kind K (default 100)",
    )
    _options.add_inproc_arguments(what)
    _options.add_pack_argument(what)
    _options.add_uprobes_argument(what)
    what.add_argument(
        "--follow",
        metavar="NAME",
        help="when the server ends, wait for a program of this name and continue with it",
    )
    _options.add_force_kernel_argument(what)
    how = parser.add_argument_group("time")
    how.add_argument(
        "--interval",
        type=_common.time_between(0.1, 3600),
        default=1.0,
        metavar="SECONDS",
        help="interval between reports (default 1)",
    )
    how.add_argument(
        "--duration",
        type=_common.time_between(0.1, _MAX_SECONDS),
        metavar="SECONDS",
        help="end after SECONDS (default: run until Ctrl-C, or until the server ends)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON lines (stallscope.waits/1)")
    output.add_argument(
        "--top", type=_top, default=10, metavar="N", help="show N locks and files (default 10)"
    )
    output.add_argument(
        "--events", action="store_true", help="report each wait above its threshold"
    )
    output.add_argument(
        "--prometheus",
        type=Path,
        metavar="FILE",
        help="write metrics to FILE for node exporter's textfile collector",
    )


def _top(text: str) -> int:
    value = _common.count(text)
    if not 1 <= value <= _MAX_TOP:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_TOP}")
    return value


def run(args: argparse.Namespace) -> Exit:
    """Watch until the end, and print the waits."""
    targets = args.pid or ([args.follow] if args.follow else [])
    selector = _common.selector(args)
    pids, servers = _rings.resolve(args, targets, selector)
    if args.follow and len(servers) != 1:
        raise UsageError("--follow takes one server: give one -p")
    if args.follow and args.ring is not None and not args.ring.is_dir():
        raise UsageError(
            "--ring FILE names one process's ring: with --follow, give the directory of the rings"
        )
    metrics = None if args.prometheus is None else WaitsFile(args.prometheus, servers)
    with ExitStack() as stack:
        follower = None
        if args.follow:
            find = waits.find_again(args.follow, selector)
            follower = stack.enter_context(waits.Follower(servers[0], find, notice))

        def title() -> str:
            now = servers if follower is None else (follower.server,)
            return ", ".join(map(_name, now))

        views: list[View] = []
        if args.json:
            views.append(Raw(sys.stdout))
        else:
            screens = Screens(sys.stdout, title, args.top, uprobes=not args.no_uprobes)
            views.append(stack.enter_context(screens))
        if metrics is not None:
            views.append(metrics)
        watched = waits.watch(pids, _wait_options(args), notice, follower)
        stack.enter_context(closing(watched))
        final = _show(watched, views)
    if follower is None:
        _report_ended(servers)
    partial = any(final.lost.values()) or (metrics is not None and metrics.failed)
    return _common.exit_code(partial=partial, stall=False, fail_on_stall=False)


def _wait_options(args: argparse.Namespace) -> waits.Options:
    return waits.Options(
        interval=args.interval,
        duration=args.duration,
        kinds=tuple(args.kind),
        thresholds=tuple(args.threshold),
        # For the screens, several intervals are merged into one.
        top=args.top if args.json else max(args.top, _LEAST_ASKED),
        events=args.events,
        uprobes=not args.no_uprobes,
        follow=bool(args.follow),
        force_kernel=args.force_kernel,
        backend=_rings.backend(args),
        ring=args.ring,
        pack_dirs=_options.pack_dirs(args),
    )


def _show(watched: Iterator[tuple[WaitLine, bytes]], views: list[View]) -> WaitLine:
    line = None
    for line, data in watched:
        for view in views:
            view.show(line, data)
    assert line is not None, "the last line is there, or an error was raised"
    return line


def _report_ended(servers: tuple[Server, ...]) -> None:
    """Report where the watch ended because the server did."""
    for server in servers:
        now = processes.read(server.main.pid)
        if now is None or now.start_time != server.main.start_time or now.state in "ZX":
            notice(f"{server.name} (pid {server.main.pid}) has ended")


def _name(server: Server) -> str:
    more = len(server.pids) - 1
    others = f" and {more} of its processes" if more else ""
    return f"{server.name} (pid {server.main.pid}{others})"

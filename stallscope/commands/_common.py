# SPDX-License-Identifier: Apache-2.0
"""What several commands share: options of the report, exit codes, the catalog."""

from __future__ import annotations

import argparse
import re
import sys

import msgspec

from stallscope.analyzers import catalog, engine, groups
from stallscope.analyzers.analysis import Analysis
from stallscope.base.errors import Exit
from stallscope.collectors import processes
from stallscope.commands import _options
from stallscope.commands._numbers import count, milliseconds, port, seconds, time_between
from stallscope.model.capture import Capture
from stallscope.reporters import firstlines, json, lines, terminal, tree

__all__ = [
    "add_report_arguments",
    "analyze",
    "count",
    "exit_code",
    "grouping",
    "milliseconds",
    "pattern",
    "port",
    "print_report",
    "seconds",
    "selector",
    "time_between",
]


GROUPS = 10
"""Groups of the whole report, if nothing else is asked for."""


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that prints an analysis."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print JSON (stallscope.analysis/1)")
    group.add_argument(
        "--lines", type=count, metavar="N", help="group threads by the N innermost frames"
    )
    group.add_argument(
        "--by",
        choices=groups.BY,
        default="stack",
        help="group by the whole stack, by the innermost frame (leaf), or by the outermost"
        " frame of the server's code (root)",
    )
    group.add_argument(
        "--threads",
        type=pattern,
        metavar="REGEX",
        help="show only groups with a thread whose name or id matches; the verdict covers all"
        " threads",
    )
    shape = group.add_mutually_exclusive_group()
    shape.add_argument("--tree", action="store_true", help="also print the stacks as a tree")
    shape.add_argument(
        "--inverted", action="store_true", help="build the tree from the innermost frames"
    )
    group.add_argument(
        "--top",
        type=count,
        metavar="N",
        help="show the whole report, with N groups of threads; 0: all",
    )
    group.add_argument(
        "--full",
        action="store_true",
        help="show the whole report, with full names, full stacks, and idle groups",
    )
    group.add_argument(
        "--fail-on-stall", action="store_true", help="exit with code 4 if a stall was found"
    )
    _options.add_signatures_argument(group)


def selector(args: argparse.Namespace) -> processes.Selector:
    """Return what the user said about the server in addition to its name."""
    return processes.Selector(socket=args.socket, port=args.port, datadir=args.datadir)


def pattern(text: str) -> re.Pattern[str]:
    """Parse a regular expression of limited length."""
    try:
        return re.compile(text[:500])
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def grouping(args: argparse.Namespace) -> groups.Grouping:
    """Return the user's options for groups."""
    return groups.Grouping(frames=args.lines or None, by=args.by, threads=args.threads)


def analyze(
    capture: Capture,
    signatures: catalog.Catalog,
    *,
    grouping: groups.Grouping,
    inputs: tuple[dict[str, str | int], ...],
    moments: bool = False,
) -> Analysis:
    """Analyze one capture and group its threads as the user asked."""
    options = engine.Options(grouping=grouping, moments=moments)
    analysis = engine.analyze(capture, signatures, options=options)
    return msgspec.structs.replace(analysis, inputs=inputs)


def print_report(
    analysis: Analysis, args: argparse.Namespace, *, elapsed_ns: int | None = None
) -> None:
    """Print one analysis to standard output as the user asked."""
    if args.json:
        print(json.dumps(analysis, elapsed_ns=elapsed_ns))
        return
    width = lines.width_of(sys.stdout)
    if _is_first_only(args):
        lines.print_lines(firstlines.render(analysis, width, more=_more(analysis)), sys.stdout)
        return
    options = terminal.Options(width=width, top=_top(args), full=args.full)
    report = terminal.render(analysis, options)
    if args.tree or args.inverted:
        report += tree.render(
            analysis, inverted=args.inverted, top=_top(args), full=args.full, width=width
        )
    lines.print_lines(report, sys.stdout)


def _is_first_only(args: argparse.Namespace) -> bool:
    """Return whether the user asked for nothing that is behind the first lines."""
    asked = (args.full, args.tree, args.inverted, args.lines, args.threads)
    return not any(asked) and args.by == "stack" and args.top is None


def _top(args: argparse.Namespace) -> int:
    return GROUPS if args.top is None else int(args.top)


def _more(analysis: Analysis) -> str:
    if analysis.capture.path is not None:
        return f"More: stallscope analyze {analysis.capture.path} --full"
    if analysis.inputs:
        return "More: --full shows all stacks, --top 10 the report, --json all of it."
    return "More: --full shows all; -o FILE keeps the capture, for analyze and report."


def exit_code(*, partial: bool, stall: bool, fail_on_stall: bool) -> Exit:
    """Return the exit code: that of a stall, where requested, comes before that of missing
    parts."""
    if stall and fail_on_stall:
        return Exit.STALL
    return Exit.PARTIAL if partial else Exit.DONE

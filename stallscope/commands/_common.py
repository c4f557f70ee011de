# SPDX-License-Identifier: Apache-2.0
"""What several commands share: options of the report, exit codes, the catalog."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis
from stallscope.collectors import processes
from stallscope.errors import Exit
from stallscope.model import Capture
from stallscope.reporters import json, terminal

__all__ = [
    "add_report_arguments",
    "add_target_arguments",
    "analyze",
    "count",
    "exit_code",
    "port",
    "print_report",
    "seconds",
    "selector",
]


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that prints an analysis."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print stallscope.analysis/1 instead")
    group.add_argument(
        "--lines", type=count, metavar="N", help="group threads by their first N frames (innermost)"
    )
    group.add_argument(
        "--top", type=count, default=10, metavar="N", help="show N groups; 0 is all (default 10)"
    )
    group.add_argument("--full", action="store_true", help="whole names, whole stacks, idle groups")
    group.add_argument(
        "--fail-on-stall", action="store_true", help="exit with code 4 where a stall was found"
    )
    group.add_argument(
        "--signatures",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="read more signatures (*.toml) from DIR",
    )


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a server."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "-p",
        "--pid",
        action="append",
        default=[],
        metavar="PID|NAME",
        help="process id, or name of the program; several make one capture",
    )
    group.add_argument("--socket", metavar="PATH", help="the server that listens on this socket")
    group.add_argument("--port", type=port, metavar="N", help="the server that listens there")
    group.add_argument("--datadir", metavar="DIR", help="the server with this data directory")


def selector(args: argparse.Namespace) -> processes.Selector:
    """Return what the user said about the server besides its name."""
    return processes.Selector(socket=args.socket, port=args.port, datadir=args.datadir)


def count(text: str) -> int:
    """Parse a number that is not negative."""
    return _number(text, 1_000_000_000, "a number, 0 or larger")


def port(text: str) -> int:
    """Parse a TCP port."""
    return _number(text, 65535, "a port, 0 to 65535")


def _number(text: str, limit: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= limit):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a time of a millisecond at least and an hour at most."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds, 0.001 to 3600")
    return value


def analyze(
    capture: Capture,
    signatures: catalog.Catalog,
    *,
    lines: int | None,
    inputs: tuple[dict[str, str | int], ...],
) -> Analysis:
    """Analyze one capture and group its threads as the user asked."""
    options = engine.Options(group_frames=lines or None)
    analysis = engine.analyze(capture, signatures, options=options)
    return msgspec.structs.replace(analysis, inputs=inputs)


def print_report(
    analysis: Analysis, args: argparse.Namespace, *, elapsed_ns: int | None = None
) -> None:
    """Print one analysis to standard output as the user asked."""
    if args.json:
        print(json.dumps(analysis, elapsed_ns=elapsed_ns))
        return
    width = 80
    if sys.stdout.isatty():
        width = max(60, min(shutil.get_terminal_size().columns, 200))
    options = terminal.Options(width=width, top=args.top, full=args.full)
    terminal.print_lines(terminal.render(analysis, options), sys.stdout)


def exit_code(*, partial: bool, stall: bool, fail_on_stall: bool) -> Exit:
    """Return the exit code: a stall, where asked for, says more than a missing part."""
    if stall and fail_on_stall:
        return Exit.STALL
    return Exit.PARTIAL if partial else Exit.DONE

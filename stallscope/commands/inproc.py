# SPDX-License-Identifier: Apache-2.0
"""Show and change the recording of servers that run with libstallscope.so."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.collectors import processes, rings
from stallscope.commands import _common, _numbers, _options
from stallscope.model.rings import Found, Life, RingError

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope inproc status
  stallscope inproc off -p mysqld
  stallscope inproc threshold lock=50 fsync=20 -p mysqld
  stallscope inproc clean

on, off and threshold write to memory that is shared with the server.
"""

ACTIONS = ("status", "on", "off", "threshold", "clean")
_WRITING = ("on", "off", "threshold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        metavar="|".join(ACTIONS),
        help="show rings; turn recording on or off; set thresholds; remove rings of dead servers",
    )
    parser.add_argument(
        "thresholds",
        nargs="*",
        type=_numbers.threshold,
        metavar="[K=]MS",
        help="for threshold: record longer waits with their stacks",
    )
    _options.add_target_arguments(parser)
    parser.add_argument(
        "--ring",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="use this ring; may be given several times",
    )
    parser.add_argument(
        "--json", action="store_true", help="status: print JSON (stallscope.inproc/1)"
    )


def run(args: argparse.Namespace) -> Exit:
    """Find the rings, and run the action."""
    selected = bool(args.pid or _common.selector(args))
    _check(args, selected)
    if args.action == "status":
        return _status(_chosen(args) if selected or args.ring else rings.everywhere(), args)
    if args.action == "clean":
        return _clean(rings.look(args.ring) if args.ring else rings.everywhere(), args)
    return _write(args)


def _check(args: argparse.Namespace, selected: bool) -> None:
    """Refuse contradicting options before anything is changed."""
    if (args.action == "threshold") != bool(args.thresholds):
        raise UsageError(
            "which threshold? give TIME or KIND=TIME after `threshold`"
            if args.action == "threshold"
            else f"{args.action} takes no threshold: {args.thresholds[0]!r}"
        )
    if args.json and args.action != "status":
        raise UsageError(f"--json goes with status, not {args.action}")
    if selected and args.ring:
        raise UsageError("give -p or --ring, not both")
    if selected and args.action == "clean":
        raise UsageError(
            "clean removes only rings of dead servers: give --ring, or nothing for all"
        )
    if args.action in _WRITING and not (selected or args.ring):
        raise UsageError("which server? give -p PID, -p NAME, or --ring FILE")


def _chosen(args: argparse.Namespace) -> list[Found]:
    """Return the rings that are named by a server or a file."""
    if args.ring:
        return rings.look(args.ring)
    pids, servers = processes.resolve(args.pid, _common.selector(args))
    found = rings.of_processes(pids)
    if not found:
        raise RingError(rings.missing(servers[0].main.pid))
    return found


def _status(found: list[Found], args: argparse.Namespace) -> Exit:
    from stallscope.reporters import inproc, lines

    if args.ring and all(one.ring is None for one in found):
        raise RingError("; ".join(one.error or str(one.path) for one in found))
    if args.json:
        print(inproc.dumps(found))
    else:
        where = [str(folder) for folder in rings.folders()]
        report = inproc.render(found, where, lines.width_of(sys.stdout))
        lines.print_lines(report, sys.stdout)
    return Exit.PARTIAL if any(one.ring is None for one in found) else Exit.DONE


def _write(args: argparse.Namespace) -> Exit:
    """Switch recording on or off, or set thresholds; print each ring that was changed."""
    from stallscope.reporters import inproc

    for found in _chosen(args):
        if found.ring is None:
            raise RingError(found.error or str(found.path))
        if found.life in (Life.ENDED, Life.LEFT):
            raise RingError(f"{found.path}: its server has ended; settings have no effect")
        if args.action == "threshold":
            rings.set_thresholds(found.path, args.thresholds)
            said = inproc.thresholds(rings.read(found.path))
        else:
            rings.switch(found.path, on=args.action == "on")
            said = f"recording is {args.action}"
        whose = f"pid {found.process}" if found.process is not None else str(found.path)
        print(one_line(f"{found.ring.comm} ({whose}): {said}"))
    return Exit.DONE


def _clean(found: list[Found], args: argparse.Namespace) -> Exit:
    """Remove rings of dead servers; keep and print those of live servers, or of which this is
    unknown."""
    removed = 0
    refused = []
    for one in found:
        try:
            rings.remove(one)
        except StallscopeError as error:
            # Running servers keep their rings: only a ring that was asked for is an error.
            if args.ring or one.life is not Life.ALIVE:
                refused.append(str(error))
        else:
            removed += 1
            print(one_line(f"removed {one.path}", 2000))
    for text in refused:
        print(f"stallscope: {one_line(text, 2000)}", file=sys.stderr)
    if args.ring and refused and not removed:
        return Exit.FAILED
    if not removed and not refused:
        print("no ring of a dead server found")
    return Exit.PARTIAL if refused else Exit.DONE

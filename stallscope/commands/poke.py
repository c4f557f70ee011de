# SPDX-License-Identifier: Apache-2.0
"""Change one listed word, or O_DIRECT of files, in a live server, so that it can be undone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.collectors import processes
from stallscope.collectors.poke import allowlist, looking, poking, records
from stallscope.commands import _common, _numbers, _options
from stallscope.model.pokes import AllowList, DirectIo, Looked, Poke
from stallscope.reporters import lines
from stallscope.reporters import poke as report
from stallscope.reporters.lines import Line

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope poke --list -p mysqld
  stallscope poke linear-read-ahead -p mysqld
  stallscope poke linear-read-ahead -p mysqld --for 300 --yes
  stallscope poke --direct-io redo -p mysqld --for 10m --yes
  stallscope poke --undo
  stallscope poke --undo 20260102T030405-a1b2c3

RISKS: with --yes this writes to the memory of a live server. Without it nothing is written.
"""

CLASSES = ("redo",)
_LONGEST = 7 * 86400.0
_EVERY = "*"
"""``--undo`` without an id."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the poke of the allow-list: see --list"
    )
    _options.add_target_arguments(parser)
    actions = parser.add_argument_group("action")
    actions.add_argument(
        "--list",
        action="store_true",
        help="show the allow-list, which of it is for the running servers, and active pokes",
    )
    actions.add_argument(
        "--direct-io",
        choices=CLASSES,
        help="set O_DIRECT on the server's open files of this class",
    )
    actions.add_argument(
        "--undo",
        nargs="?",
        const=_EVERY,
        metavar="ID",
        help="undo this poke; without ID: list what can be undone",
    )
    parser.add_argument("--yes", action="store_true", help="write; without it nothing is written")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=_numbers.time_between(0.1, _LONGEST),
        metavar="TIME",
        help="undo it after this time, by a supervisor that outlives this command",
    )
    parser.add_argument(
        "--value",
        type=_value,
        metavar="N",
        help="the new value, where the allow-list has several",
    )
    parser.add_argument(
        "--allow-list",
        type=Path,
        metavar="FILE",
        help="use this list (TOML), which only root and you can change, instead of the package's",
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="DIR",
        help="directory of the undo records (default: /var/lib/stallscope/pokes for root,"
        " otherwise ~/.local/state/stallscope/pokes)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (stallscope.poke/1)")


def run(args: argparse.Namespace) -> Exit:
    """Show, write or undo, whichever was asked for."""
    _check(args)
    folder = (args.records or records.default_folder()).absolute()
    if args.undo == _EVERY:
        return _list_undos(args, folder)
    if args.undo is not None:
        stored = poking.undo(args.undo, folder)
        _show(args, "undo", report.stored_row(stored), report.undone(stored, _width()))
        return Exit.DONE
    allowed = allowlist.load(args.allow_list)
    if args.list:
        return _list(args, folder, allowed)
    return _poke(args, folder, allowed)


def _check(args: argparse.Namespace) -> None:
    """Refuse contradicting options before anything is read."""
    actions = {
        "NAME": args.name is not None,
        "--list": args.list,
        "--direct-io": args.direct_io is not None,
        "--undo": args.undo is not None,
    }
    given = [name for name, is_given in actions.items() if is_given]
    if len(given) != 1:
        said = f"{' and '.join(given)} were given" if given else "nothing was given"
        raise UsageError(f"one of NAME, --list, --direct-io and --undo: {said}")
    (action,) = given
    named = bool(args.pid or _common.selector(args))
    changes = action in ("NAME", "--direct-io")
    if changes and not named:
        raise UsageError("which server? give -p PID or -p NAME, or --socket, --port, --datadir")
    if action == "--undo" and named:
        raise UsageError("--undo knows its server from the record: no -p")
    for option, is_given in (
        ("--yes", args.yes),
        ("--for", args.seconds is not None),
        ("--value", args.value is not None and action != "--direct-io"),
    ):
        if is_given and not changes:
            raise UsageError(f"{option} goes with NAME or --direct-io, not with {action}")
    if args.value is not None and action != "NAME":
        raise UsageError(f"--value goes with NAME, not with {action}")


def _poke(args: argparse.Namespace, folder: Path, allowed: AllowList) -> Exit:
    """Plan the change; write it if that was asked for."""
    _, servers = processes.resolve(args.pid, _common.selector(args))
    if len(servers) != 1:
        raise UsageError(f"one server at a time: {len(servers)} were given")
    looked = looking.look(servers[0].main.pid, allowed, files=args.direct_io is not None)
    if args.direct_io is not None:
        plan = poking.direct_io_plan(allowed, args.direct_io, looked)
    else:
        plan = poking.word_plan(allowed, args.name, looked, args.value)
    if not args.yes:
        row = report.plan_row(plan, args.seconds)
        _show(args, "dry-run", row, report.dry_run(plan, args.seconds, _width()))
        return Exit.DONE
    stored = poking.write(plan, folder, args.seconds)
    _show(args, "set", report.stored_row(stored), report.written(stored, _width()))
    return Exit.DONE


def _list(args: argparse.Namespace, folder: Path, allowed: AllowList) -> Exit:
    """Show the list, for the servers that were named or all that run, and the active pokes."""
    if args.pid or _common.selector(args):
        _, servers = processes.resolve(args.pid, _common.selector(args))
        pids = [server.main.pid for server in servers]
    else:
        pids = [pid for pid, _ in processes.databases()]
    found: list[Looked] = []
    problems: list[str] = []
    for pid in pids:
        try:
            found.append(looking.look(pid, allowed))
        except StallscopeError as error:
            problems.append(f"pid {pid}: {error}")
    listed: list[Poke | DirectIo] = [*allowed.poke, *allowed.direct_io]
    applied = [_applied(entry, found) for entry in listed]
    states, unread = poking.states(folder)
    open_states = [state for state in states if state.life in ("active", "changed", "unknown")]
    if args.json:
        fields: dict[str, Any] = {
            "entries": [report.entry_row(one) for one in applied],
            "pokes": [report.state_row(state) for state in open_states],
        }
        print(report.dumps("list", fields))
    else:
        text = [*report.entries(applied, _width())]
        if open_states:
            text += [Line(""), Line("Not undone:"), *report.undos(open_states, _width())]
        lines.print_lines(text, sys.stdout)
    return _warn([*problems, *unread])


def _applied(entry: Poke | DirectIo, found: Iterable[Looked]) -> report.Applied:
    theirs = [looked for looked in found if looking.applies(entry, looked)]
    pids = tuple(looked.pid for looked in theirs)
    if not isinstance(entry, Poke):
        return report.Applied(entry, pids)
    values = []
    for looked in theirs:
        address = looking.live_address(entry, looked)
        values.append(next((w.value for w in looked.words if w.address == address), None))
    return report.Applied(entry, pids, tuple(values))


def _list_undos(args: argparse.Namespace, folder: Path) -> Exit:
    """Show what can be undone."""
    states, unread = poking.states(folder)
    if args.json:
        print(report.dumps("undo-list", {"pokes": [report.state_row(one) for one in states]}))
    else:
        over = ("undone", "not-written", "ended")
        shown = [state for state in states if state.life not in over]
        lines.print_lines([*report.undos(shown, _width())], sys.stdout)
    return _warn(unread)


def _warn(problems: Iterable[str]) -> Exit:
    """Say what could not be read; return the exit code."""
    code = Exit.DONE
    for text in problems:
        print(f"stallscope: {one_line(text, 2000)}", file=sys.stderr)
        code = Exit.PARTIAL
    return code


def _show(args: argparse.Namespace, action: str, row: dict[str, Any], text: Iterable[Line]) -> None:
    if args.json:
        print(report.dumps(action, row))
    else:
        lines.print_lines([*text], sys.stdout)


def _width() -> int:
    return lines.width_of(sys.stdout)


def _value(text: str) -> int:
    """Parse a value: decimal, or hexadecimal with 0x."""
    try:
        value = int(text, 0) if len(text) < 24 else -1
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 to 2^63 - 1")
    return value

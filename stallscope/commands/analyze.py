# SPDX-License-Identifier: Apache-2.0
"""Analyze saved captures and stack dumps of other tools."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope import capturefile
from stallscope.analyzers import catalog, importers
from stallscope.commands import _common
from stallscope.errors import Exit, StallscopeError
from stallscope.text import one_line

__all__ = ["EPILOG", "HELP", "add_arguments", "run"]

HELP = "name the stall in saved captures and stack dumps"
EPILOG = """\
examples:
  stallscope analyze stall.jsonl.zst
  gdb -p $(pidof mysqld) -batch -ex 'thread apply all bt' | stallscope analyze -
  stallscope analyze --json /var/lib/pt-stalk | jq '.findings[0].signature'
"""

MAX_FILES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="FILE|DIR|-",
        help="a capture or dump, a directory of them, or standard input",
    )
    _common.add_report_arguments(parser)


class _Outcome(msgspec.Struct):
    """What became of all inputs."""

    reports: int = 0
    failed: int = 0
    partial: bool = False
    stall: bool = False


def run(args: argparse.Namespace) -> Exit:
    """Analyze every capture of every input; what cannot be read does not stop the rest."""
    signatures = catalog.load(args.signatures)
    outcome = _Outcome()
    for word in args.inputs:
        path = Path(word)
        if word != "-" and path.is_dir():
            _directory(path, args, signatures, outcome)
        elif len(args.inputs) == 1:
            _file(path, args, signatures, outcome)
        else:
            try:
                _file(path, args, signatures, outcome)
            except StallscopeError as error:
                _complain(error, outcome)
    if not outcome.reports:
        return Exit.FAILED
    return _common.exit_code(
        partial=outcome.partial or outcome.failed > 0,
        stall=outcome.stall,
        fail_on_stall=args.fail_on_stall,
    )


def _complain(error: StallscopeError, outcome: _Outcome) -> None:
    outcome.failed += 1
    print(f"stallscope: {one_line(str(error), 2000)}", file=sys.stderr)


def _directory(
    top: Path, args: argparse.Namespace, signatures: catalog.Catalog, outcome: _Outcome
) -> None:
    """Analyze what is a dump among the files below ``top``; a collection holds other files too."""
    foreign = 0
    before = outcome.reports
    failed = outcome.failed
    for path in _files(top):
        try:
            _file(path, args, signatures, outcome)
        except importers.UnknownFormat:
            foreign += 1
        except StallscopeError as error:
            _complain(error, outcome)
    if outcome.reports == before and outcome.failed == failed:
        _complain(StallscopeError(f"{top}: none of its {foreign} files holds stacks"), outcome)
    elif foreign:
        what = f"{top}: passed over {foreign} files that hold no stacks"
        print(f"stallscope: {one_line(what)}", file=sys.stderr)


def _files(top: Path) -> Iterator[Path]:
    found = 0
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            found += 1
            if found > MAX_FILES:
                raise StallscopeError(f"{top}: more than {MAX_FILES} files; name some of them")
            yield path


def _file(
    path: Path, args: argparse.Namespace, signatures: catalog.Catalog, outcome: _Outcome
) -> None:
    start = time.monotonic_ns()
    name = str(path)
    data = capturefile.read_bytes(path)
    captures = importers.load(data, name)
    own = capturefile.is_capture(data)
    source: dict[str, str | int] = {
        "path": name,
        "format": "stallscope" if own else captures[0].backend,
        "captures": len(captures),
    }
    for number, capture in enumerate(captures, 1):
        analysis = _common.analyze(
            # Only a capture of our own is a file that `capture` can name.
            msgspec.structs.replace(capture, path=name if own and name != "-" else None),
            signatures,
            lines=args.lines,
            inputs=(source,),
        )
        if not args.json:
            _heading(name, number, len(captures), args, outcome)
        _common.print_report(analysis, args, elapsed_ns=time.monotonic_ns() - start)
        outcome.reports += 1
        outcome.partial |= bool(capture.notes)
        outcome.stall |= bool(analysis.findings)
        start = time.monotonic_ns()


def _heading(
    name: str, number: int, total: int, args: argparse.Namespace, outcome: _Outcome
) -> None:
    """Say which input a report is of, where there is more than one."""
    alone = total == 1 and len(args.inputs) == 1 and not Path(args.inputs[0]).is_dir()
    if alone:
        return
    if outcome.reports:
        print()
    which = f", dump {number} of {total}" if total > 1 else ""
    print(f"== {one_line(name)}{which}")

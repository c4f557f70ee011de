# SPDX-License-Identifier: Apache-2.0
"""Analyze saved captures and stack dumps of other tools."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog, importers
from stallscope.analyzers.series import Sample, related, sample, series, together
from stallscope.base.errors import Exit, StallscopeError
from stallscope.base.text import one_line
from stallscope.commands import _common, _heapdumps, _inputs
from stallscope.commands._together import Together
from stallscope.model.memory import MemoryReport
from stallscope.reporters import course, lines, progress

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope analyze stall.jsonl.zst
  gdb -p $(pidof mysqld) -batch -ex 'thread apply all bt' | stallscope analyze -
  stallscope analyze last --top 10
  stallscope analyze --series /var/lib/samples
  stallscope analyze jeprof.1234.0.i0.heap
  stallscope analyze --json /var/lib/pt-stalk | jq '.findings[0].signature'
"""


MAX_SAMPLES = 2_000
"""The most captures that are compared with each other."""

_OWN = frozenset({"stallscope", "core", "ring"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="FILE|DIR|INCIDENT|-",
        help="a capture, dump, core file, ring, or a directory of them; an incident by id or its"
        " beginning, or last; -: standard input",
    )
    _inputs.add_arguments(parser)
    parser.add_argument(
        "--series",
        action="store_true",
        help="compare all captures in order of time: which stacks persist, appear and disappear",
    )
    _common.add_report_arguments(parser)


class _Outcome(msgspec.Struct):
    """The results of all inputs."""

    samples: list[Sample] = []
    together: Together = msgspec.field(default_factory=Together)
    reports: int = 0
    failed: int = 0
    partial: bool = False
    stall: bool = False


def run(args: argparse.Namespace) -> Exit:
    """Analyze every capture of every input; an unreadable input does not stop the others."""
    signatures = catalog.load(args.signatures)
    outcome = _Outcome()
    for word in args.inputs:
        path = _inputs.path_of(word, args)
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
    _series(args, outcome, signatures)
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
    """Analyze the dumps among the files below ``top``; a collection holds other files too."""
    foreign = 0
    before = outcome.reports
    failed = outcome.failed
    for path in progress.of_files(_inputs.files(top), printing=not args.series):
        try:
            _file(path, args, signatures, outcome)
        except importers.UnknownFormat:
            foreign += 1
        except StallscopeError as error:
            _complain(error, outcome)
    if outcome.reports == before and outcome.failed == failed:
        _complain(StallscopeError(f"{top}: none of its {foreign} files contains stacks"), outcome)
    elif foreign:
        what = f"{top}: skipped {foreign} files without stacks"
        print(f"stallscope: {one_line(what)}", file=sys.stderr)


def _file(
    path: Path, args: argparse.Namespace, signatures: catalog.Catalog, outcome: _Outcome
) -> None:
    start = time.monotonic_ns()
    name = str(path)
    heap = _heapdumps.read(path, args.sysroot)
    if heap is not None:
        _heap(name, heap, args, outcome)
        return
    captures, form = _inputs.read(path, args)
    source: dict[str, str | int] = {
        "path": name,
        "format": form,
        "captures": sum(len(capture.moments) for capture in captures),
    }
    for number, capture in enumerate(captures, 1):
        analysis = _common.analyze(
            # `capture` can name only files of stallscope.capture/1.
            msgspec.structs.replace(
                capture, path=name if form == "stallscope" and name != "-" else None
            ),
            signatures,
            grouping=_common.grouping(args),
            inputs=({**source, "format": form if form in _OWN else capture.backend},),
        )
        if len(outcome.samples) < MAX_SAMPLES:
            outcome.samples.append(sample(analysis, _label(name, number, len(captures))))
            outcome.together.add(capture)
        if not args.series:
            if not args.json:
                _heading(name, number, len(captures), args, outcome)
            _common.print_report(analysis, args, elapsed_ns=time.monotonic_ns() - start)
        outcome.reports += 1
        outcome.partial |= capture.partial
        outcome.stall |= bool(analysis.findings)
        start = time.monotonic_ns()


def _heap(name: str, heap: MemoryReport, args: argparse.Namespace, outcome: _Outcome) -> None:
    """Print the growth of memory, or a heap dump."""
    from stallscope.reporters import memory

    if args.series:
        raise StallscopeError(f"{name}: --series compares stacks of threads, not memory")
    if args.json:
        print(memory.dumps(heap))
    else:
        _heading(name, 1, 1, args, outcome)
        width = lines.width_of(sys.stdout)
        lines.print_lines(memory.render(heap, width=width), sys.stdout)
    outcome.reports += 1
    outcome.partial |= not heap.complete


def _label(name: str, number: int, total: int) -> str:
    return f"{name}, dump {number} of {total}" if total > 1 else name


def _series(args: argparse.Namespace, outcome: _Outcome, signatures: catalog.Catalog) -> None:
    """Print how the captures of one server change over time."""
    if args.json and not args.series:
        return
    of_one_server = len(outcome.samples) > 1 and related(outcome.samples)
    verdict = together(outcome.together.analyze(signatures)) if of_one_server else None
    if args.series:
        report = series(outcome.samples, verdict)
        if args.json:
            print(course.dumps(report))
        else:
            lines.print_lines(course.render(report, lines.width_of(sys.stdout)), sys.stdout)
    elif of_one_server:
        print()
        text = course.render(series(outcome.samples, verdict), lines.width_of(sys.stdout))
        lines.print_lines(text, sys.stdout)


def _heading(
    name: str, number: int, total: int, args: argparse.Namespace, outcome: _Outcome
) -> None:
    """Say which input a report is of, where there is more than one."""
    path = _inputs.path_of(args.inputs[0], args)
    alone = total == 1 and len(args.inputs) == 1 and not path.is_dir()
    if alone:
        return
    if outcome.reports:
        print()
    print(f"== {one_line(_label(name, number, total))}")

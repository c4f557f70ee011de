# SPDX-License-Identifier: Apache-2.0
"""Write captures and incidents in the formats of other tools."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from stallscope.analyzers import catalog, engine, importers
from stallscope.base import atomicfile, extras
from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.commands import _inputs, _options, _store
from stallscope.model.capture import Capture, Note

if TYPE_CHECKING:
    from stallscope.reporters.export.source import Entry, History, Options
    from stallscope.reporters.export.tables import Cell, Table
    from stallscope.store import StoredIncident

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope export stall.jsonl.zst --to pprof -o stall.pb.gz
  stallscope export stall.jsonl.zst --to folded --no-idle | flamegraph.pl >stall.svg
  stallscope export 20261121T145012.345Z-mariadbd-4711 --to chrome-trace -o stall.json
  stallscope export dumps/ --to parquet --table all -o tables/
"""

STACKS = ("folded", "speedscope", "pprof", "firefox", "svg")
TABULAR = ("csv", "parquet")
FORMATS = (*STACKS, "chrome-trace", *TABULAR)
TABLES = ("threads", "groups", "locks", "findings", "captures", "samples", "triggers")
_ALL = "all"
_BINARY = frozenset({"pprof", "parquet"})
_OF_INCIDENTS = frozenset({"samples", "triggers"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="FILE|DIR|ID|-",
        help="captures, dumps, core files or directories of them; incidents, by directory or id",
    )
    parser.add_argument("--to", required=True, choices=FORMATS, help="output format")
    out = parser.add_argument_group("output")
    out.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to FILE (default: standard output)"
    )
    out.add_argument("--force", action="store_true", help="replace FILE if it exists")
    out.add_argument(
        "--table",
        choices=(*TABLES, _ALL),
        help="csv, parquet: the table (default threads); all: one file per table in directory FILE",
    )
    out.add_argument(
        "--title", metavar="TEXT", help="title of the output (default: the first input)"
    )
    what = parser.add_argument_group("what")
    what.add_argument("--no-idle", action="store_true", help="omit idle threads")
    what.add_argument("--kernel", action="store_true", help="include kernel frames")
    what.add_argument(
        "--by-thread",
        action="store_true",
        help="folded, speedscope, svg: add an outermost frame with the thread's name",
    )
    what.add_argument(
        "--by-state",
        action="store_true",
        help="folded, speedscope, svg: add an outermost frame with the thread's state",
    )
    _inputs.add_arguments(parser)
    _options.add_signatures_argument(parser)


def run(args: argparse.Namespace) -> Exit:
    """Read the captures, and write them in the chosen format."""
    from stallscope.reporters.export.source import Options

    _check(args)
    inputs = _Inputs(args)
    options = Options(
        title=args.title or Path(args.inputs[0]).name or "stallscope",
        idle=not args.no_idle,
        kernel=args.kernel,
        threads=args.by_thread,
        states=args.by_state,
    )
    if args.table == _ALL:
        _write_tables(inputs, args, options)
    else:
        _write(_chunks(inputs, args, options), args)
    return Exit.PARTIAL if inputs.partial else Exit.DONE


def _check(args: argparse.Namespace) -> None:
    """Refuse contradicting options before anything is read."""
    if args.table is not None and args.to not in TABULAR:
        raise UsageError(f"--table goes with --to csv or parquet, not {args.to}")
    if (args.by_thread or args.by_state) and args.to not in ("folded", "speedscope", "svg"):
        raise UsageError(
            f"--by-thread and --by-state are for folded, speedscope and svg; {args.to} always"
            " has both"
        )
    if args.table == _ALL:
        if args.output is None:
            raise UsageError("--table all writes several files: name a directory with -o DIR")
        for table in TABLES:
            path = args.output / f"{table}.{args.to}"
            if path.exists() and not args.force:
                raise StallscopeError(f"{path} exists; give --force to replace it")
    elif args.output is not None:
        atomicfile.check_can_create(args.output, force=args.force)
    elif args.to in _BINARY and sys.stdout.isatty():
        raise UsageError(f"{args.to} is binary, and this is a terminal: give -o FILE")
    if args.to == "parquet":
        extras.require("parquet", "stallscope export --to parquet")


class _Inputs:
    """The inputs, in order; each capture is read when it is needed.

    ``partial``: something could not be read, or a capture says that something is missing in it.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._signatures = catalog.load(args.signatures)
        self._items = [item for word in args.inputs for item in self._named(word)]
        self._reported: set[Note] = set()
        self.partial = False

    def _named(self, word: str) -> Iterator[StoredIncident | Path]:
        """Yield the incidents and files that an argument names."""
        from stallscope.store import layout, read_incident

        stored = _store.incident(word, self._args)
        if stored is not None:
            yield stored
            return
        path = Path(word)
        if word == "-" or not path.is_dir():
            yield path
            return
        inside = None
        for file in _inputs.files(path):  # files of a folder come before those of its folders
            if file.name == layout.INCIDENT:
                inside = file.parent
                yield read_incident(inside)
            elif inside is None or not file.is_relative_to(inside):
                yield file

    def incidents(self) -> list[StoredIncident]:
        """Return the incidents among them."""
        return [item for item in self._items if not isinstance(item, Path)]

    def histories(self) -> Iterator[History]:
        """Yield what the incidents have in addition to captures."""
        from stallscope.model.waitlines import WaitLine
        from stallscope.reporters.export.source import History

        for item in self.incidents():
            lines = tuple(line for line in item.waits() if isinstance(line, WaitLine))
            yield History(item.incident, tuple(item.samples()), lines)

    def entries(self) -> Iterator[Entry]:
        """Yield the captures. Raises: StallscopeError where there are none."""
        from stallscope.reporters import progress

        found = 0
        for item in progress.of_items(self._items, "reading"):
            entries = self._of_file(item) if isinstance(item, Path) else self._stored(item)
            for entry in entries:
                found += 1
                self._missing(entry)
                yield entry
        if not found and not self.incidents():
            what = one_line(str(self._args.inputs[0]))
            raise StallscopeError(f"{what}: nothing there contains stacks")

    def timed(self) -> Iterator[Entry]:
        """Yield the captures that can be put on a timeline."""
        for entry in self.entries():
            if entry.analysis.capture.time_ns is not None:
                yield entry
            else:
                self._complain(f"{entry.name}: has no time; skipped")

    def _of_file(self, path: Path) -> Iterator[Entry]:
        named = str(path) in self._args.inputs
        try:
            captures, _ = _inputs.read(path, self._args)
        except StallscopeError as error:
            if named and len(self._items) == 1:
                raise
            # A folder of dumps holds other files too.
            if named or not isinstance(error, importers.UnknownFormat):
                self._complain(str(error))
            return
        for number, capture in enumerate(captures, 1):
            name = f"{path}, dump {number} of {len(captures)}" if len(captures) > 1 else str(path)
            yield self._entry(name, capture)

    def _stored(self, stored: StoredIncident) -> Iterator[Entry]:
        from stallscope.reporters import progress

        for entry in progress.of_items(stored.entries(), "reading captures"):
            capture = stored.capture(entry).capture
            if capture is not None:
                yield self._entry(entry.file, capture, stored.incident.id)
        for note in stored.notes:
            self._complain(note.message)

    def _entry(self, name: str, capture: Capture, incident: str | None = None) -> Entry:
        from stallscope.reporters.export.source import Entry

        return Entry(name, engine.analyze(capture, self._signatures), incident)

    def _missing(self, entry: Entry) -> None:
        """Report what could not be read for a capture; each note once."""
        for note in entry.analysis.capture.missing:
            if note not in self._reported:
                self._reported.add(note)
                self._complain(f"{entry.name}: {note.message} [{note.code}]")

    def _complain(self, what: str) -> None:
        self.partial = True
        print(f"stallscope: {one_line(what, 2000)}", file=sys.stderr)


def _chunks(inputs: _Inputs, args: argparse.Namespace, options: Options) -> Iterator[bytes]:
    """Return the one output file."""
    if args.to in TABULAR:
        from stallscope.reporters.export.tables import TABLES as tables

        table = tables[args.table or TABLES[0]]
        _check_has_rows(table.name, inputs)
        entries = () if table.name in _OF_INCIDENTS else inputs.entries()
        return _tabular(args.to, table, table.rows(entries, inputs.histories(), options))
    if args.to == "chrome-trace":
        from stallscope.reporters.export import chrometrace

        return chrometrace.render(inputs.timed(), inputs.histories(), options)
    return _stacks(args.to)(inputs.entries(), options)


def _stacks(form: str) -> Callable[[Iterable[Entry], Options], Iterator[bytes]]:
    match form:
        case "folded":
            from stallscope.reporters.export import folded

            return folded.render
        case "speedscope":
            from stallscope.reporters.export import speedscope

            return speedscope.render
        case "pprof":
            from stallscope.reporters.export import pprof

            return pprof.render
        case "firefox":
            from stallscope.reporters.export import firefox

            return firefox.render
        case "svg":
            from stallscope.reporters.export import svg

            return svg.render
    raise UsageError(f"no format {form!r}")


def _tabular(form: str, table: Table, rows: Iterable[tuple[Cell, ...]]) -> Iterator[bytes]:
    if form == "csv":
        from stallscope.reporters.export import csvfile

        return csvfile.render(table, rows)
    from stallscope.reporters.export import parquet

    return parquet.render(table, rows)


def _check_has_rows(name: str, inputs: _Inputs) -> None:
    if name in _OF_INCIDENTS and not inputs.incidents():
        raise StallscopeError(f"--table {name} needs an incident, and no input is one")


def _write(chunks: Iterator[bytes], args: argparse.Namespace) -> None:
    if args.output is not None:
        atomicfile.write(args.output, chunks, force=args.force)
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _write_tables(inputs: _Inputs, args: argparse.Namespace, options: Options) -> None:
    """Read everything once, store the rows of each table in temporary files, then write each
    table."""
    from stallscope.reporters.export.tables import TABLES as tables

    with contextlib.ExitStack() as stack:
        aside = {name: stack.enter_context(tempfile.TemporaryFile()) for name in tables}
        for entry in inputs.entries():
            for name, table in tables.items():
                _keep(table.rows((entry,), (), options), aside[name])
        for history in inputs.histories():
            for name in _OF_INCIDENTS:
                _keep(tables[name].rows((), (history,), options), aside[name])
        args.output.mkdir(mode=0o700, exist_ok=True)
        for name, table in tables.items():
            aside[name].seek(0)
            chunks = _tabular(args.to, table, map(_kept.decode, aside[name]))
            atomicfile.write(args.output / f"{name}.{args.to}", chunks, force=args.force)


def _keep(rows: Iterable[tuple[Cell, ...]], file: BinaryIO) -> None:
    for row in rows:
        line = msgspec.json.encode(row) + b"\n"
        try:
            file.write(line)
        except OSError as error:
            where = tempfile.gettempdir()
            raise StallscopeError(f"cannot write a file in {where}: {error.strerror}") from error


_kept: msgspec.json.Decoder[tuple[str | int | float | bool | None, ...]] = msgspec.json.Decoder(
    tuple[str | int | float | bool | None, ...]
)

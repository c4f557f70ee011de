# SPDX-License-Identifier: Apache-2.0
"""Write one HTML file that shows captures, an incident, a comparison, or where bytes went."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.analyzers import catalog, engine, groups, importers
from stallscope.base import atomicfile, extras
from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.commands import _common, _heapdumps, _inputs, _options, _store, _writes
from stallscope.model.capture import Capture
from stallscope.model.memory import MemoryReport
from stallscope.reporters import progress

if TYPE_CHECKING:
    from stallscope.model.storagewrites import WritesReport
    from stallscope.reporters.html.assets import Assets
    from stallscope.reporters.html.page import Builder
    from stallscope.store import StoredIncident

__all__ = ["EPILOG", "add_arguments", "incident_page", "run"]

EPILOG = """\
examples:
  stallscope report stall.jsonl.zst -o stall.html
  stallscope report 20261121T145012.345Z-mariadbd-4711 -o incident.html
  stallscope report growth.json -o growth.html
  stallscope report before.jsonl.zst after.jsonl.zst --compare -o change.html
  stallscope report writes.json -o writes.html     # saved by storage writes -o
"""

MAX_CAPTURES = 500
"""The most captures on one page."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="CAPTURE|INCIDENT|MEMORY",
        help="captures, dumps or directories of them; or one incident, by directory, by id or"
        " its beginning, or last; or one result of `memory -o`, or heap dump",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="HTML file to write; -: standard output",
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare two captures, or two directories of captures",
    )
    _inputs.add_arguments(parser)
    _options.add_signatures_argument(parser)


def run(args: argparse.Namespace) -> Exit:
    """Read everything, write the page, and print one line about its content."""
    if args.compare and len(args.inputs) != 2:
        raise UsageError(f"--compare takes two captures or directories, not {len(args.inputs)}")
    extras.require("report", "stallscope report")
    from stallscope.reporters.html import assets
    from stallscope.reporters.html.page import Builder

    bundle = assets.load()
    if args.output != Path("-"):
        atomicfile.check_can_create(args.output, force=args.force)
    if (saved := _writes.saved(args.inputs)) is not None:
        return _of_writes(saved, args, bundle)
    heap = None if args.compare else _memory(args)
    if heap is not None:
        return _write_memory(heap, bundle, args)
    signatures = catalog.load(args.signatures)
    builder = Builder(compare=args.compare)
    stored = None if args.compare else _incident(args)
    if stored is not None:
        whole = _add_incident(builder, stored, signatures)
    else:
        whole = _add_files(builder, args, signatures)
    page = builder.render(bundle)
    if _write(page, args):
        return Exit.DONE if whole else Exit.PARTIAL
    print(one_line(builder.main.verdict, 2000))
    many = "1 capture" if len(builder) == 1 else f"{len(builder)} captures"
    print(f"{one_line(str(args.output))}: {many}, {len(page) / 1e6:.1f} MB")
    return Exit.DONE if whole else Exit.PARTIAL


def _write(page: bytes, args: argparse.Namespace) -> bool:
    """Write the page; return whether it went to standard output."""
    if args.output == Path("-"):
        sys.stdout.buffer.write(page)
        sys.stdout.flush()
        return True
    atomicfile.write(args.output, [page], force=args.force)
    return False


def _of_writes(saved: WritesReport, args: argparse.Namespace, bundle: Assets) -> Exit:
    """Write the page of a saved report of ``storage writes``."""
    from stallscope.reporters.html import storagepage

    if args.compare:
        raise UsageError("--compare takes captures: stallscope diff compares reports of writes")
    page = storagepage.render(saved, bundle)
    if not _write(page, args):
        print(f"{one_line(str(args.output))}: where the bytes went, {len(page) / 1e6:.1f} MB")
    return Exit.DONE


def _memory(args: argparse.Namespace) -> MemoryReport | None:
    """Return the growth of memory, or the heap dump, that was named; None: captures were named."""
    if len(args.inputs) > 1 or _store.incident_path(args.inputs[0], args) is not None:
        return None
    path = Path(args.inputs[0])
    return None if path.is_dir() else _heapdumps.read(path, args.sysroot)


def _write_memory(report: MemoryReport, bundle: Assets, args: argparse.Namespace) -> Exit:
    from stallscope.reporters import memory
    from stallscope.reporters.html import memorypage

    page = memorypage.render(report, bundle)
    done = Exit.DONE if report.complete else Exit.PARTIAL
    if not _write(page, args):
        print(one_line(memory.headline(report), 2000))
        print(f"{one_line(str(args.output))}: {len(page) / 1e6:.1f} MB")
    return done


def incident_page(
    stored: StoredIncident, signatures: catalog.Catalog, bundle: Assets
) -> tuple[bytes, bool]:
    """Return the page of an incident, and whether all of it could be read.

    Raises: StallscopeError where none of its captures can.
    """
    from stallscope.reporters.html.page import Builder

    builder = Builder()
    whole = _add_incident(builder, stored, signatures)
    return builder.render(bundle), whole


def _incident(args: argparse.Namespace) -> StoredIncident | None:
    """Return the named incident; None where files were named."""
    named = any(_store.incident_path(word, args) is not None for word in args.inputs)
    if named and len(args.inputs) > 1:
        raise UsageError("a report shows one incident: name only that")
    return _store.incident(args.inputs[0], args) if named else None


def _add_incident(builder: Builder, stored: StoredIncident, signatures: catalog.Catalog) -> bool:
    from stallscope.reporters.html.pack import Entry

    builder.incident(stored.incident, stored.samples())
    builder.waits(stored.waits())
    whole = True
    for entry in progress.of_items(stored.entries(), "reading captures"):
        capture = stored.capture(entry).capture
        if capture is None:
            whole = False
            continue
        if len(builder) == MAX_CAPTURES:
            builder.note(f"only its first {MAX_CAPTURES} captures are shown")
            whole = False
            break
        whole &= not capture.partial
        analysis = engine.analyze(capture, signatures, options=engine.Options(moments=True))
        builder.add(analysis, Entry(entry.file, entry.reason))
    if not len(builder):
        raise StallscopeError(f"{stored.path}: none of its captures can be read")
    for note in (*stored.incident.notes, *stored.notes):
        builder.note(f"{note.message} [{note.code}]")
    return whole and not stored.notes


def _add_files(builder: Builder, args: argparse.Namespace, signatures: catalog.Catalog) -> bool:
    whole = True
    inputs = tuple(zip(args.inputs, _reasons(args), strict=True))
    for word, reason in progress.of_items(inputs, "reading inputs"):
        whole &= _add_input(builder, word, reason, args, signatures)
    return whole


def _add_input(
    builder: Builder,
    word: str,
    reason: str,
    args: argparse.Namespace,
    signatures: catalog.Catalog,
) -> bool:
    from stallscope.reporters.html.pack import Entry

    whole = True
    before = len(builder)
    for capture, form in _captures(word, args):
        if len(builder) == MAX_CAPTURES:
            raise StallscopeError(f"more than {MAX_CAPTURES} captures: name fewer")
        whole &= not capture.partial
        analysis = _common.analyze(
            capture,
            signatures,
            grouping=groups.Grouping(),
            inputs=({"path": str(word), "format": form, "captures": 1},),
            moments=True,
        )
        builder.add(analysis, Entry(str(capture.path or word), reason))
    if len(builder) == before:
        raise StallscopeError(f"{word}: none of its files contains stacks")
    return whole


def _reasons(args: argparse.Namespace) -> list[str]:
    return ["before", "after"] if args.compare else [""] * len(args.inputs)


def _captures(word: str, args: argparse.Namespace) -> Iterator[tuple[Capture, str]]:
    """Yield the captures of a file, or of a folder's files that hold stacks."""
    path = Path(word)
    folder = word != "-" and path.is_dir()
    for file in progress.of_files(_inputs.files(path), printing=False) if folder else (path,):
        try:
            captures, form = _inputs.read(file, args)
        except importers.UnknownFormat:
            if not folder:
                raise
            continue
        for capture in captures:
            yield capture, form

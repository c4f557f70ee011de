# SPDX-License-Identifier: Apache-2.0
"""List the incidents of a store, show one, remove old ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import clean, one_line
from stallscope.commands import _fleet, _options, _ship, _store
from stallscope.model.capture import Note
from stallscope.model.incident import Verdict
from stallscope.reporters import deadlocks, incidents, lines, progress, units
from stallscope.server.deadlocks import Deadlock
from stallscope.store import (
    Listing,
    Store,
    bundle,
    index,
    layout,
    listing,
    read_deadlocks,
    read_incident,
    retention,
)
from stallscope.store.storeclock import StoreClock

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope incidents                          newest last
  stallscope incidents --since 2d --signature metadata-lock
  stallscope incidents 20261121T1450            one: what fired, captures, timeline
  stallscope incidents --json | jq '.incidents[-1].verdict'
  stallscope incidents export 20261121T1450 --redact --out for-support.tar.gz
  stallscope incidents --since 2d --ship file:///var/lib/fleet
  stallscope incidents --prune --retention-time 7 --dry-run
"""

_EXPORT = "export"
_MINUTE_NS = 60 * 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="ID",
        help="show this incident; a unique prefix is enough; `export ID ...` writes some to a file",
    )
    _store.add_dest_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (stallscope.incidents/1)")
    which = parser.add_argument_group("selection")
    which.add_argument(
        "--since",
        metavar="TIME",
        help="started at TIME or later: '2026-11-21 14:50' (local), or 30min, 3h, 2d ago",
    )
    which.add_argument(
        "--signature", metavar="ID", help="with this verdict; none: without a verdict"
    )
    which.add_argument(
        "-n", "--last", type=_store.number, metavar="N", help="only the last N (default: all)"
    )
    which.add_argument(
        "--deadlocks", action="store_true", help="list the recorded deadlocks instead"
    )
    to_file = parser.add_argument_group("export")
    to_file.add_argument(
        "--redact",
        action="store_true",
        help="replace names of hosts, users, schemas, tables and paths, addresses, and all words"
        " that are not known to be harmless",
    )
    to_file.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the file to write (default: stallscope-incidents.tar.gz here)",
    )
    to_file.add_argument("--force", action="store_true", help="replace FILE if it exists")
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--ship",
        type=_ship.url,
        action="append",
        metavar="URL",
        help="send the incidents of the selection, or the ID, to the engine at URL; can be given"
        " several times",
    )
    fleet.add_argument(
        "--host", default="", metavar="NAME", help="the name of this host in the fleet"
    )
    _fleet.add_access_arguments(fleet)
    _options.add_signatures_argument(fleet)
    work = parser.add_argument_group("maintenance")
    work.add_argument(
        "--rebuild-index",
        action="store_true",
        help="read every incident again and rewrite the index",
    )
    work.add_argument(
        "--prune", action="store_true", help="remove incidents beyond the retention limits"
    )
    _store.add_retention_arguments(work)
    work.add_argument(
        "--dry-run", action="store_true", help="with --prune: only show what would be removed"
    )


def run(args: argparse.Namespace) -> Exit:
    """Print the list, or one incident, or what was removed."""
    args.id = _one_id(args)
    _check(args)
    since_ns = None if args.since is None else _store.since(args.since, _store.SINCE)
    dest = _store.reading_dest(args)
    if args.prune:
        return _prune(dest, args)
    if args.deadlocks:
        return _deadlocks(dest, since_ns, args)
    found = _listing(dest, args)
    if args.ship:
        return _send(found, since_ns, args)
    if args.words[:1] == [_EXPORT]:
        return _export([_named(word, found) for word in args.words[1:]], args)
    if args.id is not None:
        return _show(_named(args.id, found), args)
    return _list(found, since_ns, args)


def _one_id(args: argparse.Namespace) -> str | None:
    """Return the ID to show; None: there is none, or incidents are exported."""
    if args.words[:1] != [_EXPORT]:
        if args.out is not None or args.force:
            raise UsageError("--out and --force need `export ID`")
        if args.redact and not args.ship:
            raise UsageError("--redact needs `export ID` or --ship")
        if len(args.words) > 1:
            raise UsageError("one ID at a time; several are for `stallscope incidents export`")
        return args.words[0] if args.words else None
    if len(args.words) < 2:
        raise UsageError(
            "export which incidents? give their IDs: `stallscope incidents` lists them"
        )
    if (
        args.json
        or args.since
        or args.signature
        or args.last
        or args.deadlocks
        or args.prune
        or args.ship
    ):
        raise UsageError("export takes IDs, --redact, --out, --force and --dest")
    return None


def _check(args: argparse.Namespace) -> None:
    if args.prune and (args.id is not None or args.since or args.signature or args.last):
        raise UsageError(
            "--prune takes only --retention-... and --dry-run: give no ID and no selection"
        )
    if not args.prune and (args.dry_run or _store.has_retention(args)):
        raise UsageError("--dry-run and --retention-... need --prune")
    if args.ship and (args.json or args.deadlocks or args.prune):
        raise UsageError("--ship takes an ID or a selection, and --redact")
    if not args.ship and (args.host or args.password_file or args.ca_file or args.signatures):
        raise UsageError("--host, --password-file, --ca-file and --signatures need --ship")
    if args.deadlocks and (args.id is not None or args.signature or args.prune):
        raise UsageError("--deadlocks takes only --since, --last, --json and --dest")
    if args.id is not None and (args.since or args.signature or args.last is not None):
        raise UsageError("give an ID or a selection, not both")


def _export(rows: Sequence[incidents.Row], args: argparse.Namespace) -> Exit:
    path: Path = args.out or Path(f"{bundle.TOP}.tar.gz")
    if not args.redact:
        print(
            "stallscope: the file will have names of hosts, users and tables, and statements:"
            " --redact replaces them",
            file=sys.stderr,
        )
    stored = [read_incident(Path(row.path)) for row in dict.fromkeys(rows)]
    notes = bundle.write(path, stored, redact=args.redact, force=args.force)
    many = f"{len(stored)} incident{'s' if len(stored) != 1 else ''}"
    size = units.size(path.stat().st_size)
    print(f"{clean(str(path))}: {many}, {size}{', redacted' if args.redact else ''}")
    return _report_notes(notes)


def _deadlocks(dest: Path, since_ns: int | None, args: argparse.Namespace) -> Exit:
    found, notes = read_deadlocks(dest, Deadlock)
    kept = [one for one in found if since_ns is None or one.time_ns >= since_ns]
    kept = kept[-args.last :] if args.last is not None else kept
    if args.json:
        print(deadlocks.dumps(kept))
    else:
        width = lines.width_of(sys.stdout)
        lines.print_lines(list(deadlocks.render(dest, kept, width)), sys.stdout)
    return _report_notes(notes)


def _report_notes(notes: Sequence[Note]) -> Exit:
    """Print notes on standard error; return the exit code."""
    for note in notes:
        print(f"stallscope: {one_line(note.message)}", file=sys.stderr)
    return Exit.PARTIAL if notes else Exit.DONE


def _listing(dest: Path, args: argparse.Namespace) -> Listing:
    if not (dest / layout.INCIDENTS).is_dir():
        if args.dest is not None:
            raise StallscopeError(_no_store(dest))
        return Listing(dest, [])
    with progress.of_steps("reading incidents") as report:
        found = listing(dest, rebuild=args.rebuild_index, progress=report)
    stale = found.read or found.dropped or args.rebuild_index
    if stale and not index.write(dest, found.incidents) and args.rebuild_index:
        raise StallscopeError(f"{dest}: the index cannot be written: run this as the store's owner")
    if layout.pt_stalk_files(dest):
        print(f"stallscope: {_pt_stalk(dest)}", file=sys.stderr)
    return found


def _no_store(dest: Path) -> str:
    if layout.pt_stalk_files(dest):
        return _pt_stalk(dest)
    return f"{dest}: no store there; `stallscope watch --dest` creates one"


def _pt_stalk(dest: Path) -> str:
    shown = clean(str(dest))
    return f"{shown} contains files of pt-stalk: `stallscope analyze {shown}` reads them"


def _named(prefix: str, found: Listing) -> incidents.Row:
    by_id = {summary.id: summary for summary in found.incidents}
    summary = by_id[_store.matching(prefix, sorted(by_id), found.dest)]
    return incidents.Row(summary, found.path(summary))


def _send(found: Listing, since_ns: int | None, args: argparse.Namespace) -> Exit:
    from stallscope.commands import fleet_ship

    args.url, args.config = args.ship, None
    places = _fleet.places(args, several=True)
    if args.id is not None:
        names = [_named(args.id, found).summary.id]
    else:
        rows = _selected(found, since_ns, args)
        rows = rows if args.last is None else rows[-args.last :]
        names = [row.summary.id for row in rows]
    return fleet_ship.send(found.dest, places, args, incidents=names)


def _selected(
    found: Listing, since_ns: int | None, args: argparse.Namespace
) -> list[incidents.Row]:
    return [
        incidents.Row(summary, found.path(summary))
        for summary in found.incidents
        if (since_ns is None or summary.start_ns >= since_ns)
        and _has_verdict(summary.verdict, args.signature)
    ]


def _list(found: Listing, since_ns: int | None, args: argparse.Namespace) -> Exit:
    rows = _selected(found, since_ns, args)
    shown = len(rows) if args.last is None else min(args.last, len(rows))
    if args.json:
        print(incidents.dumps(rows[len(rows) - shown :]))
    else:
        width = lines.width_of(sys.stdout)
        lines.print_lines(list(incidents.list_lines(found.dest, rows, shown, width)), sys.stdout)
    return _report_notes(found.notes)


def _has_verdict(verdict: Verdict | None, wanted: str | None) -> bool:
    if wanted is None:
        return True
    if wanted == "none":
        return verdict is None
    return verdict is not None and verdict.signature == wanted


def _show(row: incidents.Row, args: argparse.Namespace) -> Exit:
    stored = read_incident(Path(row.path))
    entries = stored.entries()
    start_ns = stored.incident.start_ns
    before = stored.threads(start_ns - _MINUTE_NS, start_ns)
    if args.json:
        print(incidents.whole_dumps(row, stored, entries, before))
    else:
        samples = stored.samples()
        text = incidents.whole(
            stored,
            entries,
            samples,
            lines.width_of(sys.stdout),
            blocks=lines.can_draw_blocks(sys.stdout),
            before=before,
        )
        lines.print_lines(list(text), sys.stdout)
    return Exit.PARTIAL if stored.notes else Exit.DONE


def _prune(dest: Path, args: argparse.Namespace) -> Exit:
    if not (dest / layout.INCIDENTS).is_dir():
        raise StallscopeError(_no_store(dest))
    keep = _store.retention(args)
    with progress.of_steps("reading incidents") as report:
        found = listing(dest, progress=report)
    now = StoreClock(dest).now()
    if args.dry_run:
        old = retention.expired(found.incidents, keep, now)
        names, total, notes = [s.id for s in old], sum(s.bytes for s in old), found.notes
    else:
        with progress.of_steps("removing incidents") as report:
            done = Store.open(dest).prune(keep, progress=report)
        names, total, notes = done.removed, done.bytes, done.notes
    younger = retention.held_back(found.incidents, keep, now)
    if younger:
        print(
            f"stallscope: {younger} more are too old by the wall clock alone: they go when it has"
            " been steady for a day, unless it was set",
            file=sys.stderr,
        )
    verb = "would remove" if args.dry_run else "removed"
    if args.json:
        print(msgspec.json.encode({"removed": names, "bytes": total}).decode())
    else:
        for name in names:
            print(f"{verb} {name}")
        print(f"{verb} {len(names)} incidents, {units.size(total)}")
    return _report_notes(notes)

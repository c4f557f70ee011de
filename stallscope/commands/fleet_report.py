# SPDX-License-Identifier: Apache-2.0
"""Write one HTML page of a fleet, and the reports of its incidents that a store here has."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base import atomicfile, extras
from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.commands import _fleet
from stallscope.fleet.questions.asking import QUESTIONS, Asked, ask

if TYPE_CHECKING:
    from stallscope.fleet.destination import Engine
    from stallscope.reporters.html.assets import Assets
    from stallscope.reporters.html.fleetpage import FleetAnswers

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope fleet report -o fleet.html --from file:///var/lib/fleet
  stallscope fleet report -o week.html --from clickhouse+https://dba@ch1:8443/stallscope --since 7d
  stallscope fleet report -o fleet.html --reports 'http://{host}:9090/incidents/{id}/report'
  stallscope fleet report -o fleet.html --with-reports /var/lib/stallscope
"""

_LEFT_OUT = ("hosts",)
"""The page has its own heat map, with the other hosts in one row."""
_ROWS = 1000
_SHAPES = 5
"""Of each group of stalls without a name."""
_MOST_REPORTS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="HTML file to write; -: standard output",
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument(
        "--reports",
        default="",
        metavar="TEMPLATE",
        help="where the report of an incident is, with {id} and {host}: an address, or a path from"
        " the page; `watch --listen` serves /incidents/{id}/report",
    )
    parser.add_argument(
        "--with-reports",
        type=Path,
        metavar="DIR",
        help="also write the reports of the page's incidents that the store DIR has, into a folder"
        f" beside FILE ({_MOST_REPORTS} at most)",
    )
    _fleet.add_since_arguments(parser, "1d")
    _fleet.add_place_arguments(parser, "--from", "the fleet to show")


def run(args: argparse.Namespace) -> Exit:
    """Ask everything, write the page, and print one line about it."""
    extras.require("report", "stallscope fleet report")
    from stallscope.reporters.html import assets, fleetpage

    links = fleetpage.Links(args.reports)
    to_stream = args.output == Path("-")
    if args.with_reports is not None and to_stream:
        raise UsageError("--with-reports needs a file: give -o FILE")
    bundle = assets.load()
    if not to_stream:
        atomicfile.check_can_create(args.output, force=args.force)
    since_ms, until_ms = _fleet.since_until(args, time.time_ns() // 10**6)
    (place,) = _fleet.places(args)
    with _fleet.opened(place) as engine:
        data = _answers(engine, since_ms, until_ms)
        left_out = bool(engine.notes)
    notes = list(data.notes)
    if args.with_reports is not None:
        known, missing = _reports(data, args, bundle)
        links = fleetpage.Links(args.reports, known)
        notes += missing
        left_out = left_out or bool(missing)
    page = fleetpage.render(data, bundle, links)
    if to_stream:
        sys.stdout.buffer.write(page)
        sys.stdout.flush()
    else:
        atomicfile.write(args.output, [page], force=args.force)
        print(f"{one_line(str(args.output))}: {fleetpage.summary(data)}, {len(page) / 1e6:.1f} MB")
    for note in notes:
        print(f"stallscope: {one_line(note)}", file=sys.stderr)
    return Exit.PARTIAL if left_out else Exit.DONE


def _answers(engine: Engine, since_ms: int, until_ms: int) -> FleetAnswers:
    from stallscope.fleet.questions import overview
    from stallscope.reporters import progress
    from stallscope.reporters.html.fleetpage import FleetAnswers, Table

    asked = Asked(since_ms, until_ms, limit=_ROWS)
    tables: dict[str, Table] = {}
    notes: dict[str, None] = {}
    names = [name for name in QUESTIONS if name not in _LEFT_OUT]
    with progress.of_steps("asking the fleet") as report:
        for number, name in enumerate(names):
            answer = ask(engine, name, asked)
            tables[name] = Table(QUESTIONS[name].columns, answer.rows)
            notes.update(dict.fromkeys(answer.notes))
            report(number + 1, len(names) + 1)
        found = overview.overview(
            engine,
            since_ms,
            until_ms,
            signatures=[str(row["signature"]) for row in tables["signatures"].rows],
            shapes=[str(one) for row in tables["unknown"].rows for one in row["shapes"][:_SHAPES]],
        )
        report(len(names) + 1, len(names) + 1)
    notes.update(dict.fromkeys(engine.notes))
    return FleetAnswers(
        engine.shown,
        since_ms,
        until_ms,
        overview.step_of(since_ms, until_ms),
        found.totals,
        found.hosts,
        found.cells,
        found.all_cells,
        found.by_signature,
        found.by_host,
        found.by_shape,
        tables,
        tuple(notes),
    )


def _reports(
    data: FleetAnswers, args: argparse.Namespace, bundle: Assets
) -> tuple[dict[str, str], list[str]]:
    """Write the reports that can be written; return their paths from the page by id, and notes."""
    from stallscope.analyzers import catalog
    from stallscope.commands.report import incident_page
    from stallscope.reporters import progress
    from stallscope.store import layout, read_incident

    store: Path = args.with_reports
    if not (store / layout.INCIDENTS).is_dir():
        raise UsageError(f"--with-reports {store}: no store there")
    ids = [one for one in _ids(data) if (store / layout.INCIDENTS / one).is_dir()]
    folder = args.output.with_name(f"{args.output.stem}-reports")
    folder.mkdir(mode=0o700, exist_ok=True)
    signatures = catalog.load()
    known: dict[str, str] = {}
    notes = []
    for name in progress.of_items(ids[:_MOST_REPORTS], "writing reports"):
        path = folder / f"{name}.html"
        try:
            page, whole = incident_page(
                read_incident(store / layout.INCIDENTS / name), signatures, bundle
            )
            atomicfile.write(path, [page], force=args.force)
        except StallscopeError as error:
            notes.append(f"{name}: {error}")
            continue
        known[name] = f"{folder.name}/{name}.html"
        if not whole:
            notes.append(f"{name}: parts of its report are missing: it says which")
    if len(ids) > _MOST_REPORTS:
        notes.append(f"only {_MOST_REPORTS} of {len(ids)} reports are written")
    return known, notes


def _ids(data: FleetAnswers) -> Iterator[str]:
    """Yield the ids on the page that can be names of folders, each once."""
    from stallscope.store import layout

    seen: set[str] = set()
    for rows in (data.by_signature, data.by_shape, data.by_host):
        for row in rows:
            name = str(row.get("id"))
            if name not in seen and layout.is_id(name):
                seen.add(name)
                yield name

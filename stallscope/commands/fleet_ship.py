# SPDX-License-Identifier: Apache-2.0
"""Send to engines what a store already has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base.errors import Exit
from stallscope.base.text import one_line
from stallscope.commands import _fleet, _options, _store

if TYPE_CHECKING:
    from stallscope.fleet.shipping.storeship import Shipped

__all__ = ["EPILOG", "add_arguments", "run", "send"]

EPILOG = """\
examples:
  stallscope fleet ship --dest /var/lib/stallscope --to file:///var/lib/fleet
  stallscope fleet ship --to clickhouse+https://agent@ch1:8443/stallscope --since 7d --redact
"""

_NAMED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    _store.add_dest_argument(parser)
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="only incidents that began at TIME or later: '2026-11-21 14:50' (local), or 30min, 3h,"
        " 2d ago (default: all)",
    )
    parser.add_argument(
        "--host", default="", metavar="NAME", help="the name of the host in the fleet"
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="also replace names of users, schemas, tables and clients; literals never leave",
    )
    _options.add_signatures_argument(parser)
    _fleet.add_place_arguments(parser, "--to", "where to; may be given several times")


def run(args: argparse.Namespace) -> Exit:
    """Send what was asked for."""
    since_ns = None if args.since is None else _store.since(args.since, _store.SINCE)
    places = _fleet.places(args, several=True)
    return send(_store.reading_dest(args), places, args, since_ns=since_ns)


def send(
    store: Path,
    places: Sequence[_fleet.Place],
    args: argparse.Namespace,
    *,
    incidents: Sequence[str] | None = None,
    since_ns: int | None = None,
) -> Exit:
    """Send incidents, all where no ids are given; print a line for each engine.

    ``args``: ``signatures``, ``host`` and ``redact``.
    """
    from stallscope.fleet.engines import opening
    from stallscope.fleet.shipping import storeship
    from stallscope.reporters import progress

    found = [opening.destination(place.address, ca_file=place.ca_file) for place in places]
    try:
        with progress.of_steps("shipping incidents") as report:
            shipped = storeship.ship(
                store,
                found,
                incidents=incidents,
                since_ns=since_ns,
                signatures=args.signatures,
                host=args.host,
                redact=args.redact,
                progress=report,
            )
    finally:
        for destination in found:
            destination.close()
    for one in shipped:
        _print(one)
    if all(one.clean for one in shipped):
        return Exit.DONE
    return Exit.PARTIAL if any(one.sent for one in shipped) else Exit.FAILED


def _print(shipped: Shipped) -> None:
    what = "1 incident is" if shipped.sent == 1 else f"{shipped.sent} incidents are"
    print(f"{one_line(shipped.engine)}: {what} there, {shipped.rows} rows")
    for note in shipped.notes:
        print(f"stallscope: {one_line(note)}", file=sys.stderr)
    for failures, why in ((shipped.failed, "not sent"), (shipped.left_out, "cannot be read")):
        for failure in failures[:_NAMED]:
            text = f"{failure.incident}: {why}: {failure.why}"
            print(f"stallscope: {one_line(text)}", file=sys.stderr)
        if len(failures) > _NAMED:
            print(f"stallscope: {len(failures) - _NAMED} more: {why}", file=sys.stderr)

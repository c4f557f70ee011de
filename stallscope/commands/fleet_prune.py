# SPDX-License-Identifier: Apache-2.0
"""Remove what is older than a number of days."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallscope.base.errors import Exit
from stallscope.base.text import one_line
from stallscope.commands import _fleet, _numbers
from stallscope.fleet.tables import STACKS, TABLES

if TYPE_CHECKING:
    from stallscope.fleet.address import Address

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope fleet prune --days 90 --from file:///var/lib/fleet
  stallscope fleet prune --days 400 --from clickhouse+https://admin@ch1:8443/stallscope
"""

_MOST_DAYS = 36_500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument(
        "--days",
        type=_days,
        metavar="N",
        help="keep the rows of the last N days (default: as long as each table says: incidents and"
        " agents 400 days, waits 30)",
    )
    _fleet.add_place_arguments(
        parser,
        "--from",
        "the fleet from which rows are removed; of a cluster without ON CLUSTER each node",
    )


def run(args: argparse.Namespace) -> Exit:
    """Remove whole days; print how many."""
    from stallscope.fleet.engines import folderpruning
    from stallscope.reporters import units

    places = _fleet.places(args, several=True)
    now_ms = time.time_ns() // 10**6
    servers = [place.address for place in places if place.address.path is None]
    notes: list[str] = []
    for place in places:
        if place.address.path is None:
            continue
        done = folderpruning.prune(place.address.path, args.days, now_ms=now_ms)
        for name in done.removed:
            print(f"removed {one_line(name, 200)}")
        what = (
            "1 day of a table" if len(done.removed) == 1 else f"{len(done.removed)} days of tables"
        )
        print(one_line(f"{place.address.shown}: {what} removed, {units.size(done.bytes)}"))
        notes += done.notes
    if servers:
        _drop(servers, args.days, now_ms, places[0].ca_file)
    for note in notes:
        print(f"stallscope: {one_line(note)}", file=sys.stderr)
    return Exit.PARTIAL if notes else Exit.DONE


def _drop(servers: Sequence[Address], days: int | None, now_ms: int, ca_file: str) -> None:
    from stallscope.fleet.engines import clickhousetables

    kept = {} if days is None else dict.fromkeys(TABLES, days)
    if days is not None:  # an incident may need a stack that was shipped long before
        kept[STACKS.name] = max(days, STACKS.days)
    rows = clickhousetables.drop_old(servers, kept, now_ms=now_ms, ca_file=ca_file)
    where = " ".join(dict.fromkeys(address.shown for address in servers))
    gone = ", ".join(f"{count} of {name}" for name, count in rows.items())
    print(one_line(f"{where}: rows removed: {gone}"))


def _days(text: str) -> int:
    number = _numbers.count(text)
    if not 1 <= number <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, 1 to {_MOST_DAYS}")
    return number

# SPDX-License-Identifier: Apache-2.0
"""Options of the store, the same for every command that uses one."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base import times
from stallscope.base.errors import UsageError
from stallscope.base.text import one_line

if TYPE_CHECKING:
    from stallscope.store import Retention, StoredIncident

__all__ = [
    "add_dest_argument",
    "add_retention_arguments",
    "byte_count",
    "days",
    "has_retention",
    "incident",
    "incident_path",
    "number",
    "reading_dest",
    "retention",
    "since",
    "writing_dest",
]

_SIZE = re.compile(r"(\d{1,12})([kKMGT]?)B?")
_UNITS = {"k": 1 << 10, "K": 1 << 10, "": 1 << 20, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST_DAYS = 36_500.0


def add_dest_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--dest``."""
    parser.add_argument(
        "--dest",
        type=Path,
        metavar="DIR",
        help="the store of incidents (default: /var/lib/stallscope if writable,"
        " otherwise ~/.local/state/stallscope)",
    )


def add_retention_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options of retention, named as in pt-stalk."""
    parser.add_argument(
        "--retention-time",
        type=days,
        metavar="DAYS",
        help="remove incidents older than DAYS (default 30)",
    )
    parser.add_argument(
        "--retention-count",
        type=number,
        metavar="N",
        help="keep at most N incidents (default: all)",
    )
    parser.add_argument(
        "--retention-size",
        type=byte_count,
        metavar="SIZE",
        help="keep at most SIZE in MB, or as 10G (default: all)",
    )


def has_retention(args: argparse.Namespace) -> bool:
    """Return whether one of the options was given."""
    given = (args.retention_time, args.retention_count, args.retention_size)
    return any(value is not None for value in given)


def retention(args: argparse.Namespace) -> Retention:
    """Return the retention that the options describe."""
    from stallscope.store import Retention

    default = Retention()
    return Retention(
        days=default.days if args.retention_time is None else args.retention_time,
        count=args.retention_count,
        bytes=args.retention_size,
    )


def reading_dest(args: argparse.Namespace) -> Path:
    """Return the store to read. Raises: UsageError where the named one does not exist."""
    from stallscope.store import layout

    if args.dest is None:
        return layout.reading_dest()
    dest: Path = args.dest.absolute()
    if not dest.is_dir():
        raise UsageError(f"--dest {dest}: no such directory")
    return dest


def incident_path(word: str, args: argparse.Namespace) -> Path | None:
    """Return the folder of the incident that a word names by folder, incident.json or id. None: it
    names none.
    """
    from stallscope.store import layout

    path = Path(word)
    if path.name == layout.INCIDENT or (path / layout.INCIDENT).is_file():
        return path
    if path.exists() or not layout.is_id(word):
        return None
    return reading_dest(args) / layout.INCIDENTS / word


def incident(word: str, args: argparse.Namespace) -> StoredIncident | None:
    """Read the incident that a word names; None where it names none.

    Raises: StallscopeError where the named incident cannot be read.
    """
    from stallscope.store import layout, read_incident

    path = incident_path(word, args)
    if path is not None and layout.is_id(word) and not path.is_dir():
        raise UsageError(
            f"no incident {word} in {path.parents[1]}; `stallscope incidents` lists them"
        )
    return None if path is None else read_incident(path)


def writing_dest(args: argparse.Namespace) -> Path:
    """Return the store to write; it need not exist."""
    from stallscope.store import layout

    dest: Path | None = args.dest
    return layout.default_dest() if dest is None else dest.absolute()


def number(text: str) -> int:
    """Parse a number of incidents."""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 or larger")
    return int(text)


def days(text: str) -> float:
    """Parse a number of days."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, up to 36500")
    return value


def byte_count(text: str) -> int:
    """Parse a size; a bare number counts MB, as in pt-stalk."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500 (MB), 500M or 10G")
    return int(match.group(1)) * _UNITS[match.group(2)]


def since(text: str, forms: str) -> int:
    """Parse --since: nanoseconds since the epoch. ``forms``: how it is written, for the error."""
    try:
        return times.since(text, time.time_ns())
    except ValueError:
        shown = one_line(text, 60)
        raise UsageError(f"--since {shown!r} is not a time: write {forms}") from None

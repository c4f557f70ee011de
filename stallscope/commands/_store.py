# SPDX-License-Identifier: Apache-2.0
"""Options of the store, the same for every command that uses one."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base import quantities, times
from stallscope.base.errors import UsageError
from stallscope.base.text import one_line

if TYPE_CHECKING:
    from stallscope.store import Retention, StoredIncident

__all__ = [
    "LAST",
    "SINCE",
    "add_dest_argument",
    "add_retention_arguments",
    "byte_count",
    "days",
    "has_retention",
    "incident",
    "incident_path",
    "matching",
    "number",
    "reading_dest",
    "retention",
    "since",
    "writing_dest",
]

LAST = "last"
"""The word for the newest incident."""
_BEGINNING = re.compile(r"\d{8}(T[\w.:-]{0,200})?", re.ASCII)
"""What can begin an id, and is no name of a file that is not there."""
_MOST_NAMED = 5
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
    """Return the folder of the incident that a word names: by folder, incident.json, id or its
    beginning, or ``last`` for the newest. None: it names none.

    Raises: UsageError where several incidents begin so, or none does.
    """
    from stallscope.store import layout

    path = Path(word)
    if path.name == layout.INCIDENT or (path / layout.INCIDENT).is_file():
        return path
    if word == "-" or path.exists() or not (word == LAST or _BEGINNING.fullmatch(word)):
        return None
    folder = reading_dest(args) / layout.INCIDENTS
    try:
        known = sorted(path.name for path in folder.iterdir() if layout.is_id(path.name))
    except OSError:
        known = []
    return folder / matching(word, known, folder.parent)


def matching(word: str, known: Sequence[str], dest: Path) -> str:
    """Return the one id of the store that a word means: whole, its beginning, or ``last``.
    ``known``: the ids, oldest first.

    Raises: UsageError where it means none, or several.
    """
    if word == LAST and known:
        return known[-1]
    matches = [word] if word in known else [name for name in known if name.startswith(word)]
    if len(matches) == 1:
        return matches[0]
    shown = one_line(word, 80)
    if not matches:
        raise UsageError(f"no incident {shown} in {dest}; `stallscope incidents` lists them")
    names = ", ".join(matches[:_MOST_NAMED])
    more = ", ..." if len(matches) > _MOST_NAMED else ""
    raise UsageError(f"{len(matches)} incidents begin with {shown}: {names}{more}")


def incident(word: str, args: argparse.Namespace) -> StoredIncident | None:
    """Read the incident that a word names; None where it names none.

    Raises: StallscopeError where the named incident cannot be read.
    """
    from stallscope.store import read_incident

    path = incident_path(word, args)
    return None if path is None else read_incident(path)


def writing_dest(args: argparse.Namespace) -> Path:
    """Return the store to write; it need not exist."""
    from stallscope.store import layout

    dest: Path | None = args.dest
    return layout.default_dest() if dest is None else dest.absolute()


def number(text: str) -> int:
    """Parse a number of incidents."""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 to 999999999")
    return int(text)


def days(text: str) -> float:
    """Parse a number of days, or a time such as ``12h`` or ``4w``."""
    try:
        value = quantities.duration(text, "d") / 86_400
    except ValueError:
        value = -1.0
    if not 0 < value <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not days, up to 36500, or as 12h")
    return value


def byte_count(text: str) -> int:
    """Parse a size; a bare number counts MB, as in pt-stalk."""
    try:
        return quantities.size(text, "m")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size such as 500 (MB), 500M or 10G"
        ) from None


SINCE = "'2026-11-21 14:50', or 30min, 3h, 2d"
"""How --since is written."""


def since(text: str, forms: str) -> int:
    """Parse --since: nanoseconds since the epoch. ``forms``: how it is written, for the error."""
    try:
        return times.since(text, time.time_ns())
    except ValueError:
        shown = one_line(text, 60)
        raise UsageError(f"--since {shown!r} is not a time: write {forms}") from None

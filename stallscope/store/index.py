# SPDX-License-Identifier: Apache-2.0
"""The list of all incidents; index.json avoids reading each one, and is never trusted alone.

An entry of the index counts only where the incident.json that it was made from is the one that
lies there: same inode, times and size. So the index can be torn, old, or missing, and two agents
need not agree about it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.base.times import Count
from stallscope.model.capture import Note
from stallscope.model.incident import Incident, Outline
from stallscope.store import files, layout, locking, owners
from stallscope.store.records import DAMAGE, MAX_INCIDENT, decode_incident

__all__ = ["SCHEMA", "Listing", "Summary", "listing", "write"]

SCHEMA = "stallscope.index/1"
MAX_INDEX = 256 << 20
_MAX_NOTES = 100
_LOCK_SECONDS = 2.0

Progress = Callable[[int, int], None]
"""Called with the number of incidents read, and the number of all."""


class Summary(Outline, frozen=True, kw_only=True):
    """One incident in the list."""

    stamp: tuple[int, int, int, int]
    """Inode, mtime, ctime and size of incident.json."""
    trigger: str | None = None
    """The first one that fired."""
    triggers: Count = 0
    captures: Count = 0
    notes: Count = 0
    bytes: Count = 0
    """On disk."""
    going_on: bool = False
    """Whether an agent writes it now; checked at each listing."""


class Listing(msgspec.Struct):
    """All incidents of a store, oldest first, and what could not be read."""

    dest: Path
    incidents: list[Summary]
    notes: list[Note] = []
    read: int = 0
    """How many were not in the index."""
    dropped: int = 0
    """How many of the index no longer exist."""

    def path(self, summary: Summary) -> str:
        """Return the folder of an incident."""
        return f"{self.dest}/{layout.INCIDENTS}/{summary.id}"


class _Index(msgspec.Struct, frozen=True):
    schema: str
    incidents: list[Summary]


_decoder = msgspec.json.Decoder(_Index)


def listing(dest: Path, *, rebuild: bool = False, progress: Progress | None = None) -> Listing:
    """Return all incidents of the store at ``dest``; writes nothing.

    ``rebuild`` reads them all, whatever the index says. Raises: StallscopeError where there is no
    store, or it cannot be read.
    """
    found = Listing(dest, [])
    try:
        with files.folder(dest) as top, files.folder(layout.INCIDENTS, top) as inside:
            known = {} if rebuild else _known(top)
            names = [name for name in files.names(inside) if layout.is_id(name)]
            for number, name in enumerate(names, 1):
                _look(name, inside, known, found)
                if progress is not None:
                    progress(number, len(names))
            found.dropped = len(known.keys() - set(names))
        found.incidents.sort(key=lambda summary: summary.order)
    except OSError as error:
        raise StallscopeError(
            f"cannot read the store {dest}: {files.one_line_of(error)}"
        ) from error
    return found


def _look(name: str, inside: int, known: dict[str, Summary], found: Listing) -> None:
    """Add one incident, from the index where that is as new as the incident."""
    status = files.regular(f"{name}/{layout.INCIDENT}", inside)
    summary = known.get(name)
    try:
        if status is None or summary is None or summary.stamp != _stamp(status):
            summary = _read(name, inside)
            found.read += 1
        if summary.end_ns is None and not summary.interrupted:
            alive = owners.is_ongoing(found.dest, inside, summary)
            summary = msgspec.structs.replace(summary, going_on=alive)
        found.incidents.append(summary)
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            os.stat(name, dir_fd=inside, follow_symlinks=False)
            _note(found, f"{name}: has no incident.json; it is not an incident of stallscope")
    except OSError as error:
        _note(found, f"{name}: {files.one_line_of(error)}")
    except StallscopeError as error:
        _note(found, f"{name}/{error}")


def _note(found: Listing, message: str) -> None:
    if len(found.notes) < _MAX_NOTES:
        found.notes.append(Note("incident-unreadable", one_line(message)))


def _read(name: str, inside: int) -> Summary:
    with files.folder(name, inside) as folder:
        # Before the contents: where they change meanwhile, the entry is taken for an old one.
        status = files.regular(layout.INCIDENT, folder)
        incident = decode_incident(files.read(layout.INCIDENT, folder, MAX_INCIDENT), name)
        if status is None:
            raise FileNotFoundError
        return _summary(incident, _stamp(status), _bytes(folder))


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _summary(incident: Incident, stamp: tuple[int, int, int, int], size: int) -> Summary:
    outline = {name: getattr(incident, name) for name in Outline.__struct_fields__}
    if incident.verdict is not None:  # a list has no room for them
        outline["verdict"] = msgspec.structs.replace(incident.verdict, lines=())
    return Summary(
        **outline,
        stamp=stamp,
        trigger=incident.triggers[0].trigger if incident.triggers else None,
        triggers=len(incident.triggers),
        captures=len(incident.captures),
        notes=len(incident.notes),
        bytes=size,
    )


def _bytes(folder: int) -> int:
    """Return what an incident takes on disk."""
    total = 0
    for name in files.names(folder):
        status = files.regular(name, folder)
        if status is not None:
            total += status.st_blocks * 512
        elif name in (layout.CAPTURES, layout.TEXTS):
            with contextlib.suppress(OSError), files.folder(name, folder) as inside:
                found = (files.regular(file, inside) for file in files.names(inside))
                total += sum(status.st_blocks * 512 for status in found if status is not None)
    return total


def _known(top: int) -> dict[str, Summary]:
    """Return what the index says, by id; nothing where it cannot be read."""
    try:
        index = _decoder.decode(files.read(layout.INDEX, top, MAX_INDEX))
    except (OSError, StallscopeError, *DAMAGE):
        return {}
    if index.schema != SCHEMA:
        return {}
    return {summary.id: summary for summary in index.incidents}


def write(dest: Path, incidents: Iterable[Summary]) -> bool:
    """Write the index, and say whether that could be done: it is a cache, so nothing is raised."""
    with contextlib.suppress(OSError, StallscopeError):
        with locking.hold(dest / layout.MARK, _LOCK_SECONDS):
            data = msgspec.json.encode(_Index(SCHEMA, list(incidents)))
            # Not synced: one that is empty after a crash is made again.
            atomicfile.write(dest / layout.INDEX, [data], force=True, sync=False)
        return True
    return False

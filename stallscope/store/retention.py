# SPDX-License-Identifier: Apache-2.0
"""Retention: what is kept for how long, and how much disk space stays free."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model.capture import Note
from stallscope.model.incident import Outline
from stallscope.store import files, layout, locking
from stallscope.store.index import Summary
from stallscope.store.storeclock import Now

__all__ = [
    "DiskGuard",
    "Pruned",
    "Retention",
    "age_ns",
    "clear_leftovers",
    "expired",
    "held_back",
    "remove",
    "too_little_space",
]

_DAY_NS = 86_400 * 10**9
_LEFTOVER_S = 3600.0
"""Unlocked temporary folders of this age were left by a killed process."""

_FILES = frozenset((layout.INCIDENT, layout.SAMPLES, layout.WAITS, layout.RAW_SQL))
_FOLDERS: dict[str, Callable[[str], bool]] = {
    layout.CAPTURES: lambda name: layout.is_capture_name(name) or layout.is_sessions_name(name),
    layout.TEXTS: layout.is_text_name,
}


class Retention(msgspec.Struct, frozen=True):
    """What is kept; None: no limit. The newest incident is always kept."""

    days: float | None = 30.0
    count: int | None = None
    bytes: int | None = None


class DiskGuard(msgspec.Struct, frozen=True):
    """What must be free after the next capture; both must hold."""

    bytes_free: int = 100 << 20
    pct_free: float = 5.0


class Pruned(msgspec.Struct):
    """The result of retention."""

    removed: list[str] = []
    bytes: int = 0
    notes: list[Note] = []


def expired(incidents: Sequence[Summary], keep: Retention, now: Now) -> list[Summary]:
    """Return the incidents that are too many, too old or too large together, oldest first.

    The newest is not among them, nor any that goes on.
    """
    count = len(incidents)
    size = sum(summary.bytes for summary in incidents)
    old: list[Summary] = []
    for summary in sorted(incidents, key=lambda summary: summary.order)[:-1]:
        if summary.going_on:
            continue
        if (
            (keep.days is not None and age_ns(summary, now) > keep.days * _DAY_NS)
            or (keep.count is not None and count > keep.count)
            or (keep.bytes is not None and size > keep.bytes)
        ):
            old.append(summary)
            count -= 1
            size -= summary.bytes
    return old


def age_ns(incident: Outline, now: Now) -> int:
    """Return how old an incident is at least: by the wall clock and by the time of the store.

    Where one of them jumped, the other one counts. An incident of the future says that the wall
    clock was wrong then, or is now.
    """
    lasted_ns = max(0, (incident.end_ns or 0) - incident.start_ns)
    counted_ns = max(0, now.store_ns - incident.order[0] - lasted_ns)
    by_wall_ns = now.wall_ns - incident.start_ns - lasted_ns
    return counted_ns if by_wall_ns < 0 else min(counted_ns, by_wall_ns)


def held_back(incidents: Sequence[Summary], keep: Retention, now: Now) -> int:
    """Return how many incidents are too old by the wall clock, which is not believed yet."""
    limit_ns = None if keep.days is None else keep.days * _DAY_NS
    return sum(
        limit_ns is not None
        and now.wall_ns - max(one.start_ns, one.end_ns or 0) > limit_ns
        and age_ns(one, now) <= limit_ns
        for one in incidents
    )


def remove(incidents: Path, name: str) -> str | None:
    """Remove one incident; return why it was not.

    It is renamed first, so that no reader sees a part of it, and a later call of
    ``clear_leftovers`` goes on where this one was killed. An incident in whose folder lies anything
    that stallscope did not write is kept. Raises: OSError.
    """
    folder = incidents / name
    gone = incidents / f"{layout.GONE}{name}"
    try:
        held = locking.take(folder)
    except locking.Locked:
        return f"{name}: kept, it is ongoing"
    try:
        with files.folder(incidents) as above, files.folder(name, above) as inside:
            foreign = _foreign(inside)
        if foreign is not None:
            return f"{name}: kept, because {one_line(foreign, 80)} in it is not from stallscope"
        _rename(folder, gone)
        atomicfile.sync_folder(incidents)
        return _empty(incidents, gone.name)
    finally:
        held.release()


def _rename(folder: Path, gone: Path) -> None:
    """Rename an incident that goes. A full disk can lack room for the longer name: then captures
    go first, and where this process ends in between, a reader says which are not there."""
    try:
        os.rename(folder, gone)
    except OSError as error:
        if not files.is_full(error):
            raise
        own = _FOLDERS[layout.CAPTURES]
        with files.folder(folder) as inside, files.folder(layout.CAPTURES, inside) as below:
            _unlink(below, own)
        os.rename(folder, gone)


def _foreign(inside: int) -> str | None:
    """Return the name of something in an incident's folder that stallscope did not write."""
    for name in files.names(inside):
        status = os.stat(name, dir_fd=inside, follow_symlinks=False)
        own_folder = _FOLDERS.get(name)
        if own_folder is not None and stat.S_ISDIR(status.st_mode):
            with files.folder(name, inside) as below:
                for file in files.names(below):
                    if not _is_own(file, below, own_folder):
                        return f"{name}/{file}"
        elif not _is_own(name, inside, _FILES.__contains__):
            return name
    return None


def _is_own(name: str, inside: int, known: Callable[[str], bool]) -> bool:
    return (known(name) or layout.is_temporary(name)) and files.regular(name, inside) is not None


def _empty(incidents: Path, name: str) -> str | None:
    """Remove the files of stallscope in a folder, then the folder where nothing else is left."""
    with files.folder(incidents) as above:
        with files.folder(name, above) as inside:
            for folder, own in _FOLDERS.items():
                with contextlib.suppress(FileNotFoundError), files.folder(folder, inside) as below:
                    _unlink(below, own)
                with contextlib.suppress(FileNotFoundError):
                    _remove_folder(folder, inside)
            _unlink(inside, _FILES.__contains__)
        if not _remove_folder(name, above):
            return f"{name}: kept, because something in it is not from stallscope"
    return None


def _unlink(inside: int, own: Callable[[str], bool]) -> None:
    for name in files.names(inside):
        if _is_own(name, inside, own):
            os.unlink(name, dir_fd=inside)


def _remove_folder(name: str, inside: int) -> bool:
    try:
        os.rmdir(name, dir_fd=inside)
    except OSError:
        return False
    return True


def clear_leftovers(dest: Path, now: float) -> list[str]:
    """Finish interrupted removals, and remove temporary folders of killed processes.

    Return why not, one line each. Raises: OSError.
    """
    kept: list[str] = []
    _drop_temporary(dest, layout.is_own_temporary, now)
    _drop_temporary(dest / layout.DEADLOCKS, layout.is_temporary, now)
    incidents = dest / layout.INCIDENTS
    with files.folder(incidents) as inside:
        names = files.names(inside)
    for name in names:
        if not layout.is_leftover(name):
            continue
        if name.startswith(layout.ASIDE) and not _is_old(incidents / name, now):
            continue
        with _taken(incidents / name) as taken:
            if taken:
                why = _empty(incidents, name)
                if why is not None:
                    kept.append(why)
    return kept


def _drop_temporary(folder: Path, own: Callable[[str], bool], now: float) -> None:
    with files.folder(folder) as inside:
        for name in filter(own, files.names(inside)):
            status = files.regular(name, inside)
            if status is not None and now - status.st_mtime > _LEFTOVER_S:
                os.unlink(name, dir_fd=inside)


@contextlib.contextmanager
def _taken(folder: Path) -> Iterator[bool]:
    """Lock a folder for the body of ``with``; yield whether that was possible."""
    try:
        held = locking.take(folder)
    except (locking.Locked, OSError):
        yield False
        return
    try:
        yield True
    finally:
        held.release()


def _is_old(folder: Path, now: float) -> bool:
    """Return whether a folder has lain there so long that no living process is still making it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and now - status.st_mtime > _LEFTOVER_S


def too_little_space(
    dest: Path, guard: DiskGuard, expected: int, known: os.statvfs_result | None = None
) -> str | None:
    """Return why another capture of ``expected`` bytes would leave others too little disk; None:
    it would not. ``known``: what somebody has asked of the disk."""
    try:
        status = known or os.statvfs(dest)
    except OSError as error:
        raise StallscopeError(f"cannot read {dest}: {files.one_line_of(error)}") from error
    free = status.f_bavail * status.f_frsize - expected
    if free < guard.bytes_free:
        return (
            f"the disk of {dest} would have {max(0, free) >> 20} MiB free,"
            f" less than {guard.bytes_free >> 20} MiB (disk-bytes-free)"
        )
    # As df(1) counts: of what those without privileges can use.
    whole = (status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize
    if whole and free * 100 < guard.pct_free * whole:
        return (
            f"the disk of {dest} would be {max(0, free) * 100 / whole:.1f} % free,"
            f" less than {guard.pct_free:g} % (disk-pct-free)"
        )
    return None

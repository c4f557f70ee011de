# SPDX-License-Identifier: Apache-2.0
"""A store that is written: what the agent, or a command that prunes, has open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model.capture import Note
from stallscope.model.incident import Incident
from stallscope.store import (
    deadlocks,
    files,
    history,
    index,
    layout,
    locking,
    owners,
    reading,
    retention,
    writing,
)
from stallscope.store.index import Summary
from stallscope.store.records import encode
from stallscope.store.storeclock import Now, StoreClock, Times

__all__ = ["Store"]

_LOCK_SECONDS = 10.0
_OURS = (
    layout.INCIDENTS,
    layout.DEADLOCKS,
    layout.HISTORY,
    layout.SERVERS,
    layout.SPOOL,
    layout.CLOCK,
    layout.INDEX,
    layout.MARK,
)


class Store:
    """The folder DEST; several processes may have it open."""

    def __init__(self, dest: Path, times: Times | None = None) -> None:
        self.dest = dest
        self.clock = StoreClock(dest, times)
        self.last_capture_bytes = 0
        self._keep: retention.Retention | None = None

    @classmethod
    def open(cls, dest: Path | None = None, times: Times | None = None) -> Store:
        """Open the store to write to it; make it where there is none. Raises: StallscopeError.

        A folder in which our names belong to somebody else is refused; for root also the store of
        another user, who could not write there any more.
        """
        dest = (layout.default_dest() if dest is None else dest).absolute()
        files.make_folders(dest)
        _of_this_user(dest)
        _mark(dest)
        made = [files.make_folder(dest / name) for name in (layout.INCIDENTS, layout.DEADLOCKS)]
        if any(made):
            with contextlib.suppress(OSError):
                atomicfile.sync_folder(dest)
        store = cls(dest, times)
        store.clock.tick()
        return store

    @property
    def incidents(self) -> Path:
        """The folder of all incidents."""
        return self.dest / layout.INCIDENTS

    def begin(self, incident: Incident) -> writing.IncidentFolder:
        """Announce an incident: when this returns, it is on disk. Raises: StallscopeError.

        Where the disk is full, what is beyond the limits of the last ``prune`` is removed first.
        """
        origin = owners.origin(self.clock.now().store_ns)
        incident = msgspec.structs.replace(incident, origin=origin)
        try:
            return writing.announce(self.incidents, incident, self._note_size)
        except StallscopeError as error:
            if self._keep is None or not files.is_full(error):
                raise
            with contextlib.suppress(StallscopeError):
                self.prune(self._keep)
            return writing.announce(self.incidents, incident, self._note_size)

    def _note_size(self, size: int) -> None:
        self.last_capture_bytes = size

    def too_little_space(
        self, guard: retention.DiskGuard, expected: int | None = None
    ) -> str | None:
        """Return why another capture would leave others too little disk, None where it would not.

        ``expected`` bytes: those of the last capture where nothing is given.
        """
        if expected is None:
            expected = self.last_capture_bytes
        return retention.too_little_space(self.dest, guard, expected)

    def recover(self) -> list[str]:
        """Mark incidents of killed agents as interrupted; return their ids."""
        marked = []
        found = self.listing().incidents
        self._tick(found)
        for summary in found:
            if summary.end_ns is None and not (summary.interrupted or summary.going_on):
                with contextlib.suppress(StallscopeError, OSError):
                    if self._mark_interrupted(summary.id):
                        marked.append(summary.id)
        self.refresh_index()
        return marked

    def _tick(self, known: Sequence[Summary], *, is_locked: bool = False) -> Now:
        """Let the store's time go on, from its newest incident at least: a power loss can have
        taken what was kept of it."""
        times = (one.origin.at_ns + 1 for one in known if one.origin is not None)
        self.clock.at_least(max(times, default=0))
        return self.clock.tick(is_locked=is_locked)

    def _mark_interrupted(self, name: str) -> bool:
        path = self.incidents / name
        held = locking.take(path)
        try:
            stored = reading.read_incident(path)
            if stored.incident.end_ns is not None or stored.incident.interrupted:
                return False  # another process was faster
            incident = msgspec.structs.replace(
                stored.incident, interrupted=True, captures=tuple(stored.entries())
            )
            atomicfile.write(path / layout.INCIDENT, [encode(incident)], force=True)
            return True
        finally:
            held.release()

    def listing(
        self, *, rebuild: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> index.Listing:
        """Return all incidents."""
        return index.listing(self.dest, rebuild=rebuild, progress=progress)

    def refresh_index(self) -> None:
        """Write the index where it is not up to date; a failure costs nothing but time later."""
        with contextlib.suppress(StallscopeError):
            found = self.listing()
            if found.read or found.dropped:
                index.write(self.dest, found.incidents)

    def prune(
        self,
        keep: retention.Retention,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> retention.Pruned:
        """Remove what is beyond the limits, and what killed processes left.

        Raises: StallscopeError where another process prunes, or nothing can be removed.
        """
        self._keep = keep
        done = retention.Pruned()
        try:
            with locking.hold(self.dest / layout.MARK, _LOCK_SECONDS):
                now = self.clock.now()
                why_not = retention.clear_leftovers(self.dest, now.wall_ns / 1e9)
                history.prune(self.dest)
                found = self.listing()
                now = self._tick(found.incidents, is_locked=True)
                old = retention.expired(found.incidents, keep, now)
                for number, summary in enumerate(old, 1):
                    kept = retention.remove(self.incidents, summary.id)
                    if kept is None:
                        done.removed.append(summary.id)
                        done.bytes += summary.bytes
                    else:
                        why_not.append(kept)
                    if progress is not None:
                        progress(number, len(old))
        except OSError as error:
            what = files.one_line_of(error)
            raise StallscopeError(f"cannot prune {self.dest}: {what}") from error
        done.notes.extend(Note("kept", one_line(line)) for line in why_not)
        self.refresh_index()
        return done

    def add_deadlock(self, deadlock: msgspec.Struct, most: int = deadlocks.MOST) -> bool:
        """Keep a deadlock, a Struct with an ``id``; say whether it is new. See deadlocks.add."""
        return deadlocks.add(self.dest / layout.DEADLOCKS, deadlock, most)


def _of_this_user(dest: Path) -> None:
    try:
        owner = os.stat(dest).st_uid
    except OSError as error:
        raise StallscopeError(f"cannot read {dest}: {files.one_line_of(error)}") from error
    if os.geteuid() == 0 and owner != 0:
        raise StallscopeError(
            f"{dest} is the store of user {owner}, who could not use what root makes there: run"
            f" this as that user (sudo -u '#{owner}'), or give another --dest"
        )


def _mark(dest: Path) -> None:
    """Make the lock file; where it is not ours, nothing may be written."""
    mark = dest / layout.MARK
    try:
        with files.folder(dest) as inside:
            if files.read(layout.MARK, inside, 1 << 10) == layout.MARK_TEXT:
                return
            raise StallscopeError(f"{mark} does not belong to stallscope; name another --dest")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StallscopeError(f"cannot open {dest}: {files.one_line_of(error)}") from error
    except StallscopeError as error:
        raise StallscopeError(f"{dest} is not a store: {error}") from error
    for name in _OURS:
        if os.path.lexists(dest / name):
            raise StallscopeError(
                f"{dest} is not a store, and {name} in it may belong to others: name another"
                " --dest, or, if it is one, write the line"
                f" {layout.MARK_TEXT.decode().strip()} to {mark}"
            )
    try:
        atomicfile.write(mark, [layout.MARK_TEXT])
    except StallscopeError:
        if not mark.exists():  # else another agent was faster
            raise

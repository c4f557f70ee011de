# SPDX-License-Identifier: Apache-2.0
"""The time of a store: it only goes forward, by time that has really passed.

Within one boot CLOCK_BOOTTIME says what has passed, also in suspend, whatever the wall clock does.
The time between two boots is known from the wall clock alone. It counts once the wall clock has
been steady for a day: one that is wrong after a start is put right before. So a jump makes nothing
old, and what lay there while the host was off is old a day later. docs/store.md.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Protocol

import msgspec

from stallscope.base import atomicfile, host
from stallscope.base.errors import StallscopeError
from stallscope.base.times import Count, Moment
from stallscope.store import files, layout, locking
from stallscope.store.records import DAMAGE, encode

__all__ = ["STEADY_NS", "HostTimes", "Now", "StoreClock", "Times"]

STEADY_NS = 86_400 * 10**9
"""So long the wall clock must be steady, before it says how long the host was off."""
TOLERANCE_NS = 300 * 10**9
"""NTP may slew a clock by 43 s a day; what is more was set."""
MAX_BOOTS = 16
"""Hosts, or boots of one, whose times are kept."""
SCHEMA = "stallscope.clock/1"
_MAX_FILE = 64 << 10
_LOCK_SECONDS = 1.0


class Times(Protocol):
    """The clocks of a host."""

    def wall_ns(self) -> int: ...

    def boottime_ns(self) -> int: ...

    def boot_id(self) -> str: ...


class HostTimes:
    """The clocks of this host."""

    def wall_ns(self) -> int:
        """Return the time of day."""
        return time.time_ns()

    def boottime_ns(self) -> int:
        """Return the time since the start of the host, suspend included."""
        return host.boottime_ns()

    def boot_id(self) -> str:
        """Return which start that was."""
        return host.boot_id()


class Now(msgspec.Struct, frozen=True):
    """The same moment by two clocks, in ns since the epoch."""

    wall_ns: int
    store_ns: int


class _Boot(msgspec.Struct):
    """One boot of a host that uses the store."""

    boot: str
    begun_ns: Count
    """CLOCK_BOOTTIME when it first used the store, and the store's time then."""
    store_ns: Moment
    wall_before_ns: Moment | None
    """The wall clock when the store was used last before that; None: it has been counted."""
    steady_ns: Count
    """CLOCK_BOOTTIME since which the wall clock has not been set, and their difference."""
    offset_ns: int


class _File(msgspec.Struct):
    schema: str
    store_ns: Moment
    """The latest time that the store has had."""
    wall_ns: Moment | None
    """The wall clock at the last use; None: there was none."""
    boots: list[_Boot]
    """The one that used it last is the last."""


_decoder = msgspec.json.Decoder(_File)


class StoreClock:
    """The time of the store at ``dest``. It can be asked on a full or read-only disk too."""

    def __init__(self, dest: Path, times: Times | None = None) -> None:
        self._dest = dest
        self._times = times or HostTimes()
        self._latest = 0
        self._own: _Boot | None = None

    def now(self) -> Now:
        """Return the moment; writes nothing."""
        own = self._take(self._read()) if self._own is None else self._own
        self._latest = max(self._latest, own.store_ns + self._passed(own))
        return Now(self._times.wall_ns(), self._latest)

    def tick(self, *, is_locked: bool = False) -> Now:
        """Return the moment, and keep it: to be called at least once a day.

        ``is_locked``: the caller holds the lock of the store.
        """
        with contextlib.suppress(OSError, StallscopeError), contextlib.ExitStack() as stack:
            if not is_locked:
                stack.enter_context(locking.hold(self._dest / layout.MARK, _LOCK_SECONDS))
            known = self._read()
            own = self._take(known)
            if own.boot in (one.boot for one in known.boots[:-1]):
                own.wall_before_ns = None  # another host has used it: it was not unused
            self._count_time_off(own)
            now = self.now()
            others = [one for one in known.boots if one.boot != own.boot]
            kept = [*others[-MAX_BOOTS + 1 :], own]
            text = encode(_File(SCHEMA, now.store_ns, max(0, now.wall_ns), kept))
            # Not synced: where it is lost, the newest incident says where to go on.
            atomicfile.write(self._dest / layout.CLOCK, [text], force=True, sync=False)
        return self.now()

    def at_least(self, store_ns: int) -> None:
        """Go on from this time: the store has something of then."""
        self.now()
        if self._own is not None:
            self._own.store_ns = max(self._own.store_ns, store_ns - self._passed(self._own))

    def _passed(self, own: _Boot) -> int:
        return max(0, self._times.boottime_ns() - own.begun_ns)

    def _take(self, known: _File) -> _Boot:
        """Continue from what the file says; what this process knows already is not forgotten."""
        boot = self._times.boot_id()
        own = self._own
        if own is None or own.boot != boot:
            own = next((one for one in known.boots if one.boot == boot), None)
        if own is None:
            own = self._begin(boot, known)
        own.store_ns = max(own.store_ns, known.store_ns - self._passed(own))
        self._own = own
        return own

    def _begin(self, boot: str, known: _File) -> _Boot:
        wall, since = self._times.wall_ns(), self._times.boottime_ns()
        return _Boot(boot, since, known.store_ns, known.wall_ns, since, wall - since)

    def _count_time_off(self, own: _Boot) -> None:
        if own.wall_before_ns is None:
            return
        wall, since = self._times.wall_ns(), self._times.boottime_ns()
        if abs(wall - since - own.offset_ns) > TOLERANCE_NS:
            own.offset_ns, own.steady_ns = wall - since, since
        elif since - own.steady_ns >= STEADY_NS:
            off_ns = wall - own.wall_before_ns - (since - own.begun_ns)
            own.store_ns += max(0, off_ns)
            own.wall_before_ns = None

    def _read(self) -> _File:
        try:
            with files.folder(self._dest) as inside:
                known = _decoder.decode(files.read(layout.CLOCK, inside, _MAX_FILE))
            if known.schema == SCHEMA:
                return known
        except (OSError, StallscopeError, *DAMAGE):
            pass
        newest = _newest(self._dest)
        # An empty store begins now: nothing in it can be old.
        return _File(
            SCHEMA, max(0, self._times.wall_ns()) if newest is None else newest, newest, []
        )


def _newest(dest: Path) -> int | None:
    """Return when the newest incident began, by the names of the folders."""
    try:
        with files.folder(dest) as top, files.folder(layout.INCIDENTS, top) as inside:
            found = [layout.id_time_ns(name) for name in files.names(inside)]
    except OSError:
        return None
    return max((one for one in found if one is not None), default=None)

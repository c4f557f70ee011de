# SPDX-License-Identifier: Apache-2.0
"""The disk: where incidents are kept, and whether there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stallscope.collectors.doctor.checks import Check, Place
from stallscope.store import DiskGuard, reading_dest
from stallscope.store.retention import no_room

__all__ = ["disk"]

_CAPTURE_BYTES = 1 << 20


def disk(place: Place) -> Iterator[Check]:
    """Look at the store, its disk, and whether the server's data is on the same."""
    dest = (place.dest or reading_dest()).absolute()
    there = dest
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        mend = "give --dest a folder of your own, or run the agent as its owner"
        yield Check("store", "degraded", f"{there} cannot be written: no incidents", mend)
    else:
        made = "" if dest.exists() else " (will be made)"
        yield Check("store", "ok", f"{dest}{made}")
    reason = no_room(there, DiskGuard(), _CAPTURE_BYTES)
    if reason is not None:
        mend = "make room, or give --dest a folder on another disk"
        yield Check("disk", "degraded", f"{reason}: captures are suppressed", mend)
    else:
        free = os.statvfs(there)
        yield Check("disk", "ok", f"{free.f_bavail * free.f_frsize >> 20} MiB free at {there}")
    yield from _same_disk(place, there)


def _same_disk(place: Place, there: Path) -> Iterator[Check]:
    """Warn where captures wait for the very disk whose stall they are to show."""
    server = place.server
    if server is None or server.datadir is None:
        return
    data = place.root / "proc" / str(server.main.pid) / "root" / server.datadir.lstrip("/")
    try:
        same = os.stat(data).st_dev == os.stat(there).st_dev
    except OSError:
        return
    if same:
        what = f"{there} is on the disk of {server.datadir}: a stall of it delays captures"
        mend = "give --dest a folder on another disk"
        yield Check("store-disk", "degraded", what, mend)
    else:
        yield Check("store-disk", "ok", "another one than the server's data")

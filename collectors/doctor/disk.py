# SPDX-License-Identifier: Apache-2.0
"""The disk that incidents are stored on, and its free space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stallscope.collectors.doctor.checks import Check, Place
from stallscope.collectors.paths import asking
from stallscope.store import DiskGuard, reading_dest
from stallscope.store.retention import too_little_space

__all__ = ["disk"]

_CAPTURE_BYTES = 1 << 20


def disk(place: Place) -> Iterator[Check]:
    """Check the store, its disk, and whether the server's data is on the same disk."""
    dest = (place.dest or reading_dest()).absolute()
    there = dest
    while not asking.exists(there) and there != there.parent:
        there = there.parent
    if not asking.may(there, os.W_OK | os.X_OK):
        fix = "choose a directory that you can write with --dest, or run the agent as its owner"
        yield Check(
            "store", "degraded", f"{there} is not writable: no incidents can be stored", fix
        )
    else:
        made = "" if there == dest else " (will be created)"
        yield Check("store", "ok", f"{dest}{made}")
    free = asking.space(there)
    reason = too_little_space(there, DiskGuard(), _CAPTURE_BYTES, free)
    if reason is not None:
        fix = "free space, or choose a directory on another disk with --dest"
        yield Check("disk", "degraded", f"{reason}: captures are skipped", fix)
    else:
        yield Check("disk", "ok", f"{free.f_bavail * free.f_frsize >> 20} MiB free at {there}")
    yield from _same_disk(place, there)


def _same_disk(place: Place, there: Path) -> Iterator[Check]:
    """Warn if captures would wait for the disk whose stall they should show."""
    server = place.server
    if server is None or server.datadir is None:
        return
    data = place.root / "proc" / str(server.main.pid) / "root" / server.datadir.lstrip("/")
    try:
        same = asking.status(data).st_dev == asking.status(there).st_dev
    except asking.SilentDiskError as error:
        yield Check("store-disk", "unknown", f"{server.datadir}: {error.strerror}")
        return
    except OSError:
        return
    if same:
        what = (
            f"{there} is on the same disk as {server.datadir}: a stall of that disk delays captures"
        )
        fix = "choose a directory on another disk with --dest"
        yield Check("store-disk", "degraded", what, fix)
    else:
        yield Check("store-disk", "ok", "not on the server's data disk")

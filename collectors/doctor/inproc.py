# SPDX-License-Identifier: Apache-2.0
"""The in-process library: its file, folders where servers may create rings, and a server's ring."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors import preload, procfile, rings
from stallscope.collectors.doctor.checks import Check, Place
from stallscope.collectors.doctor.confinement import profile
from stallscope.collectors.paths import asking

__all__ = ["agent", "folder", "library"]

_MAPS = 16 << 20
_ENVIRONMENT = 1 << 20


def library() -> Iterator[Check]:
    """Report whether the library is installed."""
    try:
        yield Check(preload.LIBRARY, "ok", str(preload.find()))
    except StallscopeError as error:
        fix = "./scripts/setup, or meson setup build && meson compile -C build"
        yield Check(preload.LIBRARY, "degraded", f"no in-process library: {error}", fix)


def folder(place: Place) -> Iterator[Check]:
    """Report where the server, or without one this user, could create a ring."""
    uid = os.geteuid() if place.server is None else _user(place, place.server.main.pid)
    if uid is None:
        return
    for path in (*rings.folders(), Path("/dev/shm")):  # noqa: S108 - the last fallback, made below it
        if _is_writable(place.root / str(path).lstrip("/"), uid):
            yield Check("inproc-folder", "ok", f"uid {uid} can create a ring in {path}")
            return
    what = f"uid {uid} cannot create a ring anywhere: the in-process library would record nothing"
    fix = "install -d -m 1777 /run/stallscope, or stallscope run --ring-dir DIR"
    yield Check("inproc-folder", "degraded", what, fix)


def agent(place: Place, pids: tuple[int, ...]) -> Iterator[Check]:
    """Report whether the server has the library loaded, and what its ring shows."""
    try:
        found = rings.of_processes(pids)
    except StallscopeError as error:
        yield Check("inproc", "degraded", str(error))
        return
    for one in found:
        ring = one.ring
        assert ring is not None, "of_processes gives what could be read"
        what = f"{one.path}: {ring.threads} threads, {ring.waits} waits"
        if not ring.enabled:
            yield Check("inproc", "degraded", f"{what}; turned off", "stallscope inproc on -p PID")
        elif ring.threads >= ring.slots:
            fix = f"stallscope run --threads {2 * ring.slots}"
            yield Check("inproc", "degraded", f"{what}; no room for more threads", fix)
        else:
            yield Check("inproc", "ok", what)
    if found or not pids:
        return
    yield _without_a_ring(place, pids[0])


def _without_a_ring(place: Place, pid: int) -> Check:
    loaded = _loaded(place, pid)
    by = profile(place, pid)
    confined = "" if by is None else f"; it is confined by {by}"
    fix = "see the server's error log and the check inproc-folder"
    if by is not None:
        fix += "; add the rules of docs/inproc.md to its profile"
    if loaded:
        what = "the library is loaded, but there is no ring: no wait yet, or no directory for it"
        return Check("inproc", "degraded", what + confined, fix)
    if loaded is None:
        return Check("inproc", "ok", f"no ring; the libraries of pid {pid} cannot be read")
    if _preloads(place, pid):
        what = f"LD_PRELOAD of pid {pid} names the library, but it is not loaded"
        return Check("inproc", "degraded", what + confined, fix)
    what = "not loaded; only needed where BPF and ptrace are not permitted (stallscope run)"
    return Check("inproc", "ok", what)


def _preloads(place: Place, pid: int) -> bool:
    """Return whether a process was started to load our library."""
    environment = procfile.read(place.root / f"proc/{pid}/environ", _ENVIRONMENT) or b""
    return any(
        word.startswith(b"LD_PRELOAD=") and preload.LIBRARY.encode() in word
        for word in environment.split(b"\0")
    )


def _loaded(place: Place, pid: int) -> bool | None:
    """Return whether a process has our library; None where that cannot be read."""
    maps = procfile.read(place.root / f"proc/{pid}/maps", _MAPS)
    return None if maps is None else f"/{preload.LIBRARY}".encode() in maps


def _user(place: Place, pid: int) -> int | None:
    for line in (place.text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None


def _is_writable(path: Path, uid: int) -> bool:
    """Return whether a user may make files there; groups are not checked."""
    try:
        status = asking.status(path)
    except OSError:
        return False
    mine = status.st_uid == uid and status.st_mode & 0o300 == 0o300
    return uid == 0 or mine or status.st_mode & 0o003 == 0o003

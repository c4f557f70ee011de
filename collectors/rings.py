# SPDX-License-Identifier: Apache-2.0
"""The rings of libstallscope.so, through ``stallscope-probe rings``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe
from stallscope.collectors.paths import asking
from stallscope.model import rings
from stallscope.model.rings import Found, Life, Ring, RingError

__all__ = [
    "RUNTIME_DIR",
    "advice",
    "everywhere",
    "folders",
    "look",
    "missing",
    "of_processes",
    "read",
    "remove",
    "set_thresholds",
    "switch",
]

RUNTIME_DIR = "STALLSCOPE_RUNTIME_DIR"
_SECONDS = 10.0
_AT_ONCE = 256
"""Rings that the probe takes on one command line."""


def folders() -> list[Path]:
    """Return the folders in which libstallscope.so makes a ring, in the order that it tries them.

    They need not be there.
    """
    named = os.environ.get(RUNTIME_DIR)
    if named:
        return [Path(named)]
    found = [Path("/run/stallscope")]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        found.append(Path(runtime, "stallscope"))
    found.append(Path(f"/dev/shm/stallscope-{os.geteuid()}"))  # noqa: S108
    return found


def everywhere() -> list[Found]:
    """Return all rings in $STALLSCOPE_RUNTIME_DIR; without it, in the folders of all users."""
    return _ask()


def look(paths: Sequence[Path]) -> list[Found]:
    """Return these rings, in their order."""
    found = []
    for at in range(0, len(paths), _AT_ONCE):
        found += _ask(*_named(paths[at : at + _AT_ONCE]))
    if len(found) != len(paths):
        raise RingError(f"{probe.PROBE} rings: {len(found)} answers to {len(paths)} questions")
    # The probe writes JSON, so a path that is not UTF-8 comes back changed.
    return [msgspec.structs.replace(one, path=path) for one, path in zip(found, paths, strict=True)]


def read(path: Path | str) -> Ring:
    """Return the fields of a ring. Raises: RingError."""
    (found,) = look([Path(path)])
    if found.ring is None:
        raise RingError(found.error or f"{path} cannot be read")
    return found.ring


def of_processes(pids: Iterable[int]) -> list[Found]:
    """Return the rings of these processes, for those that have one we may read."""
    words = [word for pid in dict.fromkeys(pids) for word in ("--pid", str(pid))]
    return [found for found in _ask(*words) if found.life is Life.ALIVE] if words else []


def switch(path: Path | str, *, on: bool) -> None:
    """Switch the recording of a server on or off: one word of memory that it shares."""
    _ask(*_named([path]), "--recording", "on" if on else "off")


def set_thresholds(path: Path | str, thresholds: Iterable[str]) -> None:
    """Set thresholds, ``MS`` or ``KIND=MS``: a word for each kind; the last one wins."""
    _ask(*_named([path]), *(word for text in thresholds for word in ("--threshold", text)))


def missing(pid: int) -> str:
    """Say that a process has no ring, and what to do."""
    return (
        f"process {pid} has no ring of libstallscope.so that can be read here: start it with"
        " `stallscope run`, or see `stallscope inproc status`; a ring is created at the first wait"
        " for a lock, a sync or more space"
    )


def advice(error: StallscopeError, pids: Iterable[int]) -> str:
    """Return an error's text; where a process has a ring, with how to read it."""
    text = str(error)
    if "--backend inproc" in text:
        return text
    try:
        found = of_processes(pids)
    except StallscopeError:  # the first error is the one to report
        return text
    return f"{text}; try --backend inproc" if found else text


def remove(found: Found) -> None:
    """Remove the ring of a server that is gone. Raises: RingError for every other."""
    if found.life is Life.ALIVE:
        raise RingError(
            f"{found.path}: its server still runs (pid {found.process}): it is not removed"
        )
    if found.life is Life.UNKNOWN or found.ring is None:
        why = found.error or f"{found.path}: its server may still run in another PID namespace"
        raise RingError(f"{why}; it is not removed")
    try:
        asking.unlink(found.path)
    except OSError as error:
        raise RingError(f"{found.path}: {error.strerror}: it cannot be removed") from error


def _named(paths: Iterable[Path | str]) -> list[str]:
    return [word for path in paths for word in ("--ring", str(path))]


def _ask(*words: str) -> list[Found]:
    try:
        return rings.loads(probe.run(["rings", *words], seconds=_SECONDS))
    except probe.ProbeError as error:
        raise RingError(str(error)) from error

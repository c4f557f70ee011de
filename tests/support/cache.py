# SPDX-License-Identifier: Apache-2.0
"""Where scripts/setup keeps what is costly to get, and why something is not available."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["MEMORY", "Unavailable", "cache_folder", "why_missing"]

_SHARED = Path("/dev/shm")
_ROOM = 1 << 30
"""What a few servers need there; containers have 64 MB by default."""


def _memory() -> Path:
    try:
        size = os.statvfs(_SHARED)
    except OSError:
        return Path(tempfile.gettempdir())
    return _SHARED if size.f_blocks * size.f_frsize >= _ROOM else Path(tempfile.gettempdir())


MEMORY = _memory()
"""A parent for servers that are to have no stall but those that are made: no disk is slow there."""


class Unavailable(Exception):
    """A server cannot be had on this machine; the text is the reason."""


def cache_folder() -> Path:
    """Return the folder that all checkouts of one user share (STALLSCOPE_CACHE overrides it).

    Root's is in /var/cache, where the unprivileged user that servers run as can read it.
    """
    if folder := os.environ.get("STALLSCOPE_CACHE"):
        return Path(folder)
    if os.geteuid() == 0:
        return Path("/var/cache/stallscope")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stallscope"


def why_missing(name: str) -> str:
    """Return the reason that scripts/setup recorded for ``name``, or what to do about it."""
    try:
        return (cache_folder() / "unavailable" / name).read_text().strip()
    except OSError:
        return "not set up: run scripts/setup --all"

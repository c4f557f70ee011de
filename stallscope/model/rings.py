# SPDX-License-Identifier: Apache-2.0
"""Rings that libstallscope.so keeps in servers, as ``stallscope-probe rings`` describes them.

Only the probe reads and writes the file itself.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError

__all__ = ["SUFFIX", "Found", "Life", "Ring", "RingError", "is_ring", "loads"]

SUFFIX = ".ring"
_MAGIC = b"STALLRNG"


class RingError(StallscopeError):
    """The file is not a ring, or cannot be read or written."""


class Ring(msgspec.Struct, frozen=True):
    """The fields of a ring. Names come from the server: escape them before they are shown."""

    owner: int
    """User id of the file."""
    size: int
    pid: int
    """In the server's own pid namespace."""
    created_ns: int
    """CLOCK_MONOTONIC."""
    created_wall_ns: int
    comm: str
    exe: str
    library: str
    enabled: bool
    thresholds_ms: dict[str, float]
    slots: int
    """Threads that it has room for."""
    threads: int
    waiting: int
    """Number of the threads that are in a wait."""
    waits: int
    """Approximate number of waits that began."""
    records: int
    """Number of records written since the start."""
    lost: dict[str, int]
    """By cause; causes with 0 are omitted."""


class Life(enum.StrEnum):
    """What has become of a ring's server."""

    ALIVE = "alive"
    ENDED = "ended"
    """It has exited cleanly."""
    LEFT = "left"
    """It is gone, and did not say so."""
    UNKNOWN = "unknown"
    """It cannot be seen from here."""


class Found(msgspec.Struct, frozen=True):
    """A ring, or why it cannot be read."""

    path: Path
    ring: Ring | None = None
    error: str | None = None
    life: Life = Life.UNKNOWN
    process: int | None = None
    """In our pid namespace, while it lives."""


_decoder = msgspec.json.Decoder(Found, dec_hook=lambda _, value: Path(value))


def is_ring(head: bytes) -> bool:
    """Return whether data begins like a ring."""
    return head.startswith(_MAGIC)


def loads(data: bytes) -> list[Found]:
    """Read the probe's lines. Raises: RingError."""
    try:
        return [_decoder.decode(line) for line in data.splitlines()]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RingError(f"stallscope-probe rings: not understood: {error}") from error

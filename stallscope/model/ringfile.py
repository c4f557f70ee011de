# SPDX-License-Identifier: Apache-2.0
"""The header of a ring that libstallscope.so writes in a server: its fields, and its few commands.

The layout is that of inproc/ring.h. stallscope-probe reads the rest of a ring. No field is trusted:
the server writes the file, and may be hostile.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.model.waitkinds import SOURCE_LOST, THRESHOLDS

__all__ = [
    "MAGIC",
    "SUFFIX",
    "Found",
    "Life",
    "Ring",
    "RingError",
    "is_ring",
    "read",
    "set_thresholds",
    "switch",
]

MAGIC = b"STALLRNG"
VERSION = 1
SUFFIX = ".ring"

_LINE = 64  # size of a cache line: parts with different writers begin at a new one


def _aligned(offset: int) -> int:
    return (offset + _LINE - 1) // _LINE * _LINE


CONSTANT = struct.Struct("=8s2I7Q6IiI4Q40s16s256s16sQ")
COMMANDS = struct.Struct(f"=II{len(THRESHOLDS)}Q")
LIVE = struct.Struct(f"=4IQ{len(SOURCE_LOST)}Q")
HEAD = struct.Struct("=Q")
COMMANDS_AT = _aligned(CONSTANT.size)
THRESHOLDS_AT = COMMANDS_AT + 8
LIVE_AT = _aligned(COMMANDS_AT + COMMANDS.size)
HEAD_AT = _aligned(LIVE_AT + LIVE.size)
SIZE = _aligned(HEAD_AT + HEAD.size)

SLOT_SIZE = 192  # struct stall_wait_slot: seq is its first word
SLOT_TID_AT = 64
_MAX_SLOTS = 16384
_MAX_FILE = 512 << 20
_ENDED = 2
_MOST_NS = (1 << 63) - 1


class RingError(StallscopeError):
    """The file is not a ring, or cannot be read or written."""


class Ring(msgspec.Struct, frozen=True):
    """The fields of the header. Names come from the server: escape them before they are shown."""

    path: str
    owner: int
    """User id of the file."""
    size: int
    pid: int
    """In the server's own pid namespace."""
    start_time: int
    """Clock ticks since boot; 0: not known."""
    start_stack: int
    """Where the program's stack began, which an execve changes; 0: not known."""
    pid_namespace: int
    """Inode; 0: not known."""
    created_ns: int
    """CLOCK_MONOTONIC."""
    created_wall_ns: int
    boot_id: str
    comm: str
    exe: str
    library: str
    enabled: bool
    thresholds_ms: dict[str, float]
    ended: bool
    """The server has exited normally."""
    slots: int
    """The most threads that it can record."""
    threads: int
    waiting: int
    """How many threads wait now."""
    waits: int
    """Approximate number of waits that began."""
    records: int
    """Records written since the start."""
    lost: dict[str, int]
    """Lost records by cause, without causes that are 0."""


class Life(enum.StrEnum):
    """The state of a ring's server."""

    ALIVE = "alive"
    ENDED = "ended"
    """It has exited normally."""
    LEFT = "left"
    """It has ended without marking its ring."""
    UNKNOWN = "unknown"
    """Unknown: it would not be visible to this process."""


class Found(msgspec.Struct, frozen=True):
    """A ring, or why it cannot be read."""

    path: Path
    ring: Ring | None = None
    error: str | None = None
    life: Life = Life.UNKNOWN
    process: int | None = None
    """The pid in our namespace, while it runs."""


def is_ring(head: bytes) -> bool:
    """Return whether data begins like a ring."""
    return head.startswith(MAGIC)


def read(path: Path | str) -> Ring:
    """Read a header. Raises: RingError."""
    with _opened(path, os.O_RDONLY) as (descriptor, status):
        fields, slots = _header(descriptor, str(path), status.st_size)
        commands = COMMANDS.unpack(_pread(descriptor, COMMANDS.size, COMMANDS_AT, path))
        live = LIVE.unpack(_pread(descriptor, LIVE.size, LIVE_AT, path))
        (head,) = HEAD.unpack(_pread(descriptor, HEAD.size, HEAD_AT, path))
        used = min(live[1], slots)
        places = _pread(descriptor, used * SLOT_SIZE, fields[4], path)
    taken = [
        struct.unpack_from("=I", places, at)[0]
        for at in range(0, len(places), SLOT_SIZE)
        if struct.unpack_from("=i", places, at + SLOT_TID_AT)[0] != 0
    ]
    return Ring(
        path=str(path),
        owner=status.st_uid,
        size=status.st_size,
        pid=fields[16],
        start_time=fields[18],
        start_stack=fields[26],
        pid_namespace=fields[19],
        created_ns=min(fields[20], _MOST_NS),
        created_wall_ns=min(fields[21], _MOST_NS),
        boot_id=_text(fields[22]),
        comm=_text(fields[23]),
        exe=_text(fields[24]),
        library=_text(fields[25]),
        enabled=commands[0] != 0,
        thresholds_ms={kind: ns / 1e6 for kind, ns in zip(THRESHOLDS, commands[2:], strict=True)},
        ended=live[0] == _ENDED,
        slots=slots,
        threads=len(taken),
        waiting=sum(seq & 1 for seq in taken),
        waits=live[4],
        records=head,
        lost={
            cause.name: count for cause, count in zip(SOURCE_LOST, live[5:], strict=True) if count
        },
    )


def switch(path: Path | str, *, on: bool) -> None:
    """Switch the recording of a server on or off: one word of memory that it shares."""
    _write(path, [(COMMANDS_AT, struct.pack("=I", on))])


def set_thresholds(path: Path | str, nanoseconds: dict[str, int]) -> None:
    """Set the thresholds of kinds: a word each."""
    _write(
        path,
        [
            (THRESHOLDS_AT + 8 * THRESHOLDS.index(kind), struct.pack("=Q", ns))
            for kind, ns in nanoseconds.items()
        ],
    )


def _write(path: Path | str, words: Sequence[tuple[int, bytes]]) -> None:
    # Not through a mapping: the server can truncate the file at any time, which raises SIGBUS.
    with _opened(path, os.O_RDWR) as (descriptor, status):
        _header(descriptor, str(path), status.st_size)
        for offset, word in words:
            try:
                os.pwrite(descriptor, word, offset)
            except OSError as error:
                raise _failed(path, error) from error


@contextlib.contextmanager
def _opened(path: Path | str, mode: int) -> Iterator[tuple[int, os.stat_result]]:
    # In a folder of another user a name can be any file: opening a FIFO must not block.
    flags = mode | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise _failed(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RingError(f"{path} is no file")
        yield descriptor, status
    finally:
        os.close(descriptor)


def _failed(path: Path | str, error: OSError) -> RingError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return RingError(f"{path}: {error.strerror}; run this as the server's user, or as root")
    if error.errno == errno.ELOOP:
        return RingError(f"{path} is a symbolic link: name the ring itself")
    return RingError(f"{path}: {error.strerror or error}")


def _header(descriptor: int, name: str, size: int) -> tuple[tuple[Any, ...], int]:
    """Return the constant part and the number of slots, if both are valid."""
    data = _pread(descriptor, CONSTANT.size, 0, name)
    fields = CONSTANT.unpack(data)
    if fields[0] != MAGIC:
        raise RingError(f"{name} is no ring of libstallscope.so")
    if fields[1] != VERSION:
        raise RingError(
            f"{name} is of version {fields[1]}, and this stallscope reads {VERSION}:"
            " take library and stallscope from one build"
        )
    slots_at, slots = fields[4], fields[10]
    end = slots_at + slots * SLOT_SIZE
    if not (SIZE <= fields[3] == size <= _MAX_FILE and slots <= _MAX_SLOTS and end <= size):
        raise RingError(f"{name} is damaged: its header does not fit its {size} bytes")
    return fields, slots


def _pread(descriptor: int, size: int, offset: int, name: Path | str) -> bytes:
    try:
        data = os.pread(descriptor, size, offset)
    except OSError as error:
        raise _failed(name, error) from error
    if len(data) != size:
        raise RingError(f"{name} is no ring of libstallscope.so: it is too short")
    return data


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")

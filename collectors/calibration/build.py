# SPDX-License-Identifier: Apache-2.0
"""Which build of a program a process runs, from its memory: the file may have been replaced."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

from stallscope.collectors.calibration.memory import Memory, Piece

__all__ = ["bias_of", "build_id_of", "build_of"]

_HEADER = 64
_MAX_SEGMENTS = 64
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr: elf(5)
_NOTE_SEGMENT = 4
_BUILD_ID_NOTE = 3
_MAX_NOTES = 4096
_HASHED = 64 << 10


def build_of(memory: Memory) -> str | None:
    """Return the build-id, or ``sha256-…`` of the first 64 KiB of a program without one; None where
    its beginning cannot be read."""
    if not memory.exe_start:
        return None
    (head,) = memory.read([(memory.exe_start, _HASHED)])
    if not _is_elf(head):
        return None
    found = build_id_of(head, memory.exe_start, memory.read)
    return found or f"sha256-{hashlib.sha256(head).hexdigest()[:40]}"


def build_id_of(
    head: bytes, start: int, read: Callable[[Sequence[Piece]], list[bytes]]
) -> str | None:
    """Return the build-id of the program whose file begins with ``head``, and in memory at
    ``start``; None where it has none."""
    bias = bias_of(head, start)
    if bias is None:
        return None
    pieces = [
        (bias + address, min(length, _MAX_NOTES))
        for kind, _, _, address, _, length, *_ in _segments(head)
        if kind == _NOTE_SEGMENT
    ]
    for notes in read(pieces):
        if found := _in_notes(notes):
            return found
    return None


def bias_of(head: bytes, start: int) -> int | None:
    """Return what is added to the addresses of the program's symbol table in memory."""
    # The program's file is mapped from its beginning on: where it was linked to, that is.
    loaded = [address for kind, _, at, address, *_ in _segments(head) if kind == 1 and at == 0]
    return start - loaded[0] if loaded else None


def _is_elf(head: bytes) -> bool:
    return len(head) >= _HEADER and head[:5] == b"\x7fELF\x02"


def _segments(head: bytes) -> list[tuple[int, ...]]:
    if not _is_elf(head):
        return []
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    if size != _SEGMENT.size:
        return []
    return [
        _SEGMENT.unpack_from(head, offset + size * i)
        for i in range(min(count, _MAX_SEGMENTS))
        if offset + size * (i + 1) <= len(head)
    ]


def _in_notes(notes: bytes) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name, size, kind = struct.unpack_from("<III", notes, at)
        begin = at + 12 + (name + 3) // 4 * 4
        if kind == _BUILD_ID_NOTE and notes[at + 12 : at + 16] == b"GNU\0" and 8 <= size <= 64:
            return notes[begin : begin + size].hex() if begin + size <= len(notes) else None
        at = begin + (size + 3) // 4 * 4
    return None

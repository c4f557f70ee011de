# SPDX-License-Identifier: Apache-2.0
"""Heap dumps of jemalloc (``heap_v2``, text): what is allocated, by addresses of a stack.

A header, then for each stack its addresses from the innermost and how many objects and bytes it
has, in total (``t*``) and by thread; behind ``MAPPED_LIBRARIES:`` the mappings of the process.
jemalloc samples one allocation in so many bytes, so small ones are scaled up.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right

import msgspec

from stallscope.base.errors import StallscopeError

__all__ = ["MAX_BYTES", "HeapDump", "HeapStack", "Mapping", "find", "is_heap_dump", "parse"]

MAX_BYTES = 256 << 20
MAX_STACKS = 1_000_000
MAX_FRAMES = 1024
MAX_MAPPINGS = 1_000_000
MAX_LINE = 65_536
_MAX_COUNT = 1 << 62

_HEAD = re.compile(r"heap_v2/(\d{1,19})\s*$")
_COUNTS = re.compile(r"\s*t\*:\s*(\d{1,19}):\s*(\d{1,19})\s*\[\s*\d{1,19}:\s*\d{1,19}\s*\]\s*$")
_MAPPING = re.compile(
    r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-]([x-])[ps] ([0-9a-f]{1,16})"
    r" [0-9a-f]{1,8}:[0-9a-f]{1,8} \d{1,20}\s*(.*)$"
)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}$")
_DELETED = " (deleted)"


class HeapStack(msgspec.Struct, frozen=True):
    """What is allocated by one stack; scaled up from the samples."""

    bytes: int
    objects: int
    addresses: tuple[int, ...]
    """From the innermost; return addresses."""


class Mapping(msgspec.Struct, frozen=True):
    """An executable mapping of a file."""

    start: int
    end: int
    offset: int
    path: str


class HeapDump(msgspec.Struct, frozen=True):
    """A dump. ``bad_lines``: lines that could not be read."""

    period: int
    """Bytes from one sample to the next, in the mean."""
    stacks: tuple[HeapStack, ...]
    mappings: tuple[Mapping, ...]
    """Sorted by address."""
    bad_lines: int


def is_heap_dump(head: bytes) -> bool:
    """Return whether data begins like such a dump."""
    return head.startswith(b"heap_v2/")


def parse(data: bytes, name: str) -> HeapDump:
    """Read a dump. Raises: StallscopeError."""
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    head = _HEAD.match(lines[0][:MAX_LINE]) if lines else None
    if head is None:
        raise StallscopeError(f"{name}: not a heap dump of jemalloc (heap_v2)")
    period = int(head.group(1))
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    mappings: list[Mapping] = []
    bad = 0
    addresses: tuple[int, ...] | None = None
    in_mappings = False
    for line in lines[1:]:
        if len(line) > MAX_LINE:
            bad += 1
        elif line.startswith("MAPPED_LIBRARIES:"):
            in_mappings = True
        elif in_mappings:
            bad += _add_mapping(mappings, line)
        elif line.startswith("@"):
            addresses = _addresses(line)
            bad += addresses is None
        elif addresses is not None and (counts := _COUNTS.match(line)):
            if len(found) >= MAX_STACKS:
                raise StallscopeError(f"{name}: more than {MAX_STACKS} stacks: not read")
            objects, size = _scaled(int(counts.group(1)), int(counts.group(2)), period)
            before = found.get(addresses, (0, 0))
            found[addresses] = (before[0] + objects, before[1] + size)
            addresses = None
    if not found and len(lines) < 3:
        raise StallscopeError(f"{name}: the heap dump of jemalloc is cut")
    stacks = [HeapStack(size, objects, key) for key, (objects, size) in found.items()]
    stacks.sort(key=lambda stack: -stack.bytes)
    mappings.sort(key=lambda mapping: mapping.start)
    return HeapDump(period, tuple(stacks), tuple(mappings), bad)


def find(mappings: tuple[Mapping, ...], address: int) -> Mapping | None:
    """Return the mapping that has the address."""
    at = bisect_right(mappings, address, key=lambda mapping: mapping.start) - 1
    return mappings[at] if at >= 0 and address < mappings[at].end else None


def _addresses(line: str) -> tuple[int, ...] | None:
    words = line[1:].split()
    if len(words) > MAX_FRAMES or not all(_ADDRESS.match(word) for word in words):
        return None
    return tuple(int(word, 16) for word in words)


def _scaled(objects: int, size: int, period: int) -> tuple[int, int]:
    """Return estimates of all from what was sampled: an object of this size is sampled with the
    probability 1 - exp(-size / period)."""
    if not objects or period <= 1:
        return min(objects, _MAX_COUNT), min(size, _MAX_COUNT)
    seen = -math.expm1(-(size / objects) / period)
    if seen <= 0:
        return min(objects, _MAX_COUNT), min(size, _MAX_COUNT)
    return min(round(objects / seen), _MAX_COUNT), min(round(size / seen), _MAX_COUNT)


def _add_mapping(mappings: list[Mapping], line: str) -> int:
    """Add an executable one; return 1 where the line cannot be read."""
    if not line.strip():
        return 0
    match = _MAPPING.match(line)
    if match is None:
        return 1
    start, end = int(match.group(1), 16), int(match.group(2), 16)
    path = match.group(5).strip()
    if match.group(3) != "x" or not path or start >= end or len(mappings) >= MAX_MAPPINGS:
        return 0
    mappings.append(Mapping(start, end, int(match.group(4), 16), path.removesuffix(_DELETED)))
    return 0

# SPDX-License-Identifier: Apache-2.0
"""Sums of what the page cache holds, by class of files and by reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stallscope.model.storagecache import CLASSES, MAY_GO, CachedFile

__all__ = ["ClassTotal", "LeftOut", "by_class", "left_out", "total", "uncached"]


class ClassTotal(msgspec.Struct, frozen=True):
    """Files of one class. A sum is None where no file's number is known."""

    kind: str = msgspec.field(name="class")
    files: int
    size: int
    cached_bytes: int | None
    dirty_bytes: int | None
    evicted_bytes: int | None
    recently_evicted_bytes: int | None
    unknown_files: int = 0
    """Whose cached bytes are in no sum."""
    memory_bytes: int = 0
    """Of ``cached_bytes``: of file systems that keep their files in memory."""


class LeftOut(msgspec.Struct, frozen=True):
    """Files of the classes asked for that stay in the cache for one reason."""

    reason: str
    files: int
    cached_bytes: int
    """Of the files whose number is known."""


def by_class(files: Sequence[CachedFile]) -> tuple[ClassTotal, ...]:
    """Return the classes that have a file, in their order."""
    found = ((kind, [one for one in files if one.kind == kind]) for kind in CLASSES)
    return tuple(_sum(kind, of_kind) for kind, of_kind in found if of_kind)


def total(files: Sequence[CachedFile]) -> ClassTotal:
    """Return the sum of all."""
    return _sum("total", files)


def _sum(kind: str, files: Sequence[CachedFile]) -> ClassTotal:
    return ClassTotal(
        kind=kind,
        files=len(files),
        size=sum(one.size for one in files),
        cached_bytes=_add(one.cached_bytes for one in files),
        dirty_bytes=_add(one.dirty_bytes for one in files),
        evicted_bytes=_add(one.evicted_bytes for one in files),
        recently_evicted_bytes=_add(one.recently_evicted_bytes for one in files),
        unknown_files=sum(one.cached_bytes is None for one in files),
        memory_bytes=sum(one.cached_bytes or 0 for one in files if one.memory),
    )


def _add(numbers: Iterable[int | None]) -> int | None:
    known = [one for one in numbers if one is not None]
    return sum(known) if known else None


def uncached(files: Sequence[CachedFile]) -> tuple[CachedFile, ...]:
    """Return files of which something may leave the cache, or has left it; the most first."""
    found = [
        one
        for one in files
        if one.uncache is not None and one.uncache.reason == MAY_GO and one.uncache.clean_bytes
    ]
    return tuple(sorted(found, key=lambda one: -(one.uncache.clean_bytes if one.uncache else 0)))


def left_out(files: Sequence[CachedFile]) -> tuple[LeftOut, ...]:
    """Return why the other files stay; the reason with the most bytes first."""
    sums: dict[str, list[int]] = {}
    for one in files:
        if one.uncache is not None and one.uncache.reason != MAY_GO:
            sums.setdefault(one.uncache.reason, []).append(one.cached_bytes or 0)
    found = [LeftOut(reason, len(numbers), sum(numbers)) for reason, numbers in sums.items()]
    return tuple(sorted(found, key=lambda one: (-one.cached_bytes, one.reason)))

# SPDX-License-Identifier: Apache-2.0
"""Which stacks and which connections made the memory of a server grow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from stallscope.analyzers.names import bare, normalize
from stallscope.model.capture import Thread
from stallscope.model.memory import (
    SCHEMA,
    Growth,
    MemoryReport,
    MemoryStack,
    MemoryThread,
    Toucher,
)

__all__ = ["LEAST_ADDED", "clean_stack", "heaviest", "of_heap", "place", "report"]

LEAST_ADDED = 256 << 10
"""Of less memory a share says nothing: the two readings are not of one moment."""
MAX_STACKS = 500
MAX_THREADS = 200
_PLACE = 6
_HALF = 0.5

_ALLOCATES = re.compile(
    r"(?:_*(?:libc_)?(?:malloc|calloc|realloc|free|memalign|valloc|pvalloc|aligned_alloc|cfree"
    r"|posix_memalign|mmap|brk|sbrk|default_morecore|morecore|munmap|madvise)(?:64|_check|_hook\w*)?"
    r"|_int_(?:malloc|realloc|memalign|free)|sysmalloc(?:_mmap)?|systrim|tcache_init|tcache_\w+"
    r"|arena_get\w*|new_heap|alloc_new_heap|grow_heap|heap_trim|ptmalloc_\w+|alloc_perturb"
    r"|mmap_chunk|unlink_chunk|malloc_consolidate|mremap_chunk"
    r"|operator new(?:\[\])?|_*(?:mem(?:set|cpy|move|pcpy)|str(?:cpy|ncpy|len|dup|ndup)|bzero"
    r"|stpcpy)(?:_\w+)?"
    r"|(?:my|mi|je|tc|pfs)_?(?:malloc|calloc|realloc|mallocx|rallocx|memalign)\w*"
    r"|(?:arena|tcache|extent|ehooks|pac|hpa|edata|emap|prof)_\w+"
    r"|redirect_my_malloc|init_one_value|my_(?:once_alloc|multi_malloc\w*|memdup|strdup|strndup"
    r"|large_malloc|internal_malloc|raw_malloc)"
    r"|(?:alloc|multi_alloc|strdup|strmake|memdup|root_alloc|reset|init_alloc|prealloc)_root"
    r"|sql_(?:alloc|calloc|strdup|strmake|memdup)"
    r"|MEM_ROOT::\w+|Query_arena::(?:alloc|calloc|mem\w+|str\w+)"
    r"|mem_heap_(?:create_block\w*|add_block|alloc|zalloc|create\w*|dup|strdup)"
    r"|mem_area_alloc|ut_malloc\w*|ut::\w*(?:malloc|zalloc|new)\w*|ut::detail::.*"
    r"|ut_allocator::.*|std::.*alloc.*|__gnu_cxx::.*alloc.*|Allocator\w*::.*"
    r"|libc(?:-2)?\.(?:so|\d+\.so)[.\d]*\+0x[0-9a-f]+"
    r"|libjemalloc\.so[.\d]*\+0x[0-9a-f]+|libheaptrack\w*\.so.*"
    r"|mysys_namespace::.*|AllocSet\w+|palloc\w*|MemoryContextAlloc\w*|repalloc\w*)$"
)
"""Functions that allocate, clear or copy for their callers."""


def clean_stack(frames: Iterable[str]) -> tuple[str, ...]:
    """Return the names of a stack as people know them."""
    return tuple(normalize(name) for name in frames)


def place(frames: Sequence[str]) -> tuple[str, ...]:
    """Return the frames that say whose memory it is: without those that allocate for others."""
    start = 0
    while start < len(frames) and _ALLOCATES.match(bare(frames[start])):
        start += 1
    if start == len(frames):
        start = 0
    return tuple(frames[start : start + _PLACE])


def heaviest(stacks: Sequence[MemoryStack]) -> tuple[tuple[str, ...], int]:
    """Return the path from the outermost frame on which at least half of the bytes are, and the
    bytes at its end."""
    inside = [(stack.bytes, stack.frames) for stack in stacks if stack.bytes > 0 and stack.frames]
    total = sum(size for size, _ in inside)
    path: list[str] = []
    held = total
    while inside:
        at = len(path)
        sums: dict[str, int] = {}
        for size, frames in inside:
            if at < len(frames):
                name = frames[len(frames) - 1 - at]
                sums[name] = sums.get(name, 0) + size
        name = max(sums, key=lambda key: sums[key], default="")
        if not name or sums[name] < _HALF * total or _ALLOCATES.match(bare(name)):
            break
        path.append(name)
        held = sums[name]
        inside = [
            (size, frames)
            for size, frames in inside
            if at < len(frames) and frames[len(frames) - 1 - at] == name
        ]
    return tuple(path), held if path else 0


def report(
    growth: Growth,
    threads: Mapping[int, Thread],
    *,
    server: str | None = None,
    notes: Sequence[str] = (),
) -> MemoryReport:
    """Return what the probe saw as a report. ``threads``: by TID, as a capture at the end has
    them."""
    names = {item.id: clean_stack(item.frames) for item in growth.stacks}
    stacks = _stacks(growth, names)
    attributed = sum(stack.bytes for stack in stacks if stack.frames)
    added = _added(growth)
    path, held = heaviest(stacks)
    owners = _threads(growth, names, threads)
    connections = [item for item in threads.values() if item.connection is not None]
    connection_bytes = sum(item.bytes for item in owners if item.connection is not None)
    return MemoryReport(
        schema=SCHEMA,
        source="live",
        pid=growth.pid,
        exe=growth.exe,
        server=server,
        seconds=growth.seconds,
        growth_bytes=None if growth.after is None else growth.after.own - growth.before.own,
        attributed_share=_share(attributed, added),
        attributed_bytes=None if growth.after is None else attributed,
        added_bytes=added,
        freed_bytes=None if growth.after is None or growth.cut else growth.freed_bytes,
        before=growth.before,
        after=growth.after,
        estimated=growth.sampled or growth.populated_bytes > 0,
        stacks=stacks[:MAX_STACKS],
        heaviest=path,
        heaviest_bytes=held,
        threads=owners[:MAX_THREADS],
        thread_stack_bytes=sum(item.bytes for item in growth.touchers if item.on_stack),
        connections=len(connections) if connections else None,
        connection_bytes=connection_bytes if connections else None,
        bytes_per_connection=connection_bytes / len(connections) if connections else None,
        file_faults=sum(item.file_pages for item in growth.touchers),
        shared_faults=sum(item.shared_pages for item in growth.touchers),
        malloc=growth.malloc,
        faults=growth.faults,
        lost=growth.lost,
        notes=(*notes, *_notes(growth, len(stacks))),
        complete=not (growth.ended or growth.cut or _is_lossy(growth)),
    )


def of_heap(
    source: Literal["jemalloc", "heaptrack"],
    path: str,
    stacks: Iterable[tuple[int, int, Iterable[str]]],
    *,
    exe: str | None = None,
    seconds: float | None = None,
    notes: Sequence[str] = (),
    complete: bool = True,
) -> MemoryReport:
    """Return a heap dump as a report. ``stacks``: bytes, allocations, frames from the innermost."""
    sums: dict[tuple[str, ...], tuple[int, int]] = {}
    for size, count, names in stacks:
        frames = clean_stack(names)
        before = sums.get(frames, (0, 0))
        sums[frames] = (before[0] + size, before[1] + count)
    found = [
        MemoryStack(bytes=size, frames=frames, place=place(frames), allocations=count)
        for frames, (size, count) in sums.items()
        if size > 0
    ]
    found.sort(key=lambda stack: (not stack.frames, -stack.bytes, stack.frames))
    total = sum(stack.bytes for stack in found)
    known = sum(stack.bytes for stack in found if stack.frames)
    named, held = heaviest(found)
    more: tuple[str, ...] = ()
    if len(found) > MAX_STACKS:
        more = (f"only the {MAX_STACKS} largest of {len(found)} stacks are listed",)
    return MemoryReport(
        schema=SCHEMA,
        source=source,
        path=path,
        exe=exe,
        seconds=seconds,
        growth_bytes=total,
        attributed_share=round(known / total, 4) if total else None,
        attributed_bytes=known,
        stacks=tuple(found[:MAX_STACKS]),
        heaviest=named,
        heaviest_bytes=held,
        notes=(*notes, *more),
        complete=complete,
    )


def _added(growth: Growth) -> int | None:
    """Return what was added, by smaps: the growth, and what was freed meanwhile."""
    if growth.after is None or growth.cut:
        return None
    return max(0, growth.after.own - growth.before.own + growth.freed_bytes)


def _share(attributed: int, added: int | None) -> float | None:
    if added is None or added < LEAST_ADDED:
        return None
    return round(attributed / added, 4)


def _size(toucher: Toucher) -> int:
    return toucher.bytes + toucher.hugetlb_bytes


def _kind(toucher: Toucher) -> str:
    if toucher.hugetlb_bytes > toucher.bytes:
        return "hugetlb"
    return "stack" if toucher.on_stack else toucher.kind


def _stacks(growth: Growth, names: Mapping[int, tuple[str, ...]]) -> tuple[MemoryStack, ...]:
    """Sum by stack; the largest first, and behind them what has no stack."""
    sizes: dict[tuple[tuple[str, ...], str], int] = {}
    faults: dict[tuple[tuple[str, ...], str], int] = {}
    tids: dict[tuple[tuple[str, ...], str], set[int]] = {}
    for item in growth.touchers:
        # A process that has ended leaves only what was touched.
        size = _size(item) if growth.after is not None else item.faults * 4096
        if size <= 0:
            continue
        key = (names.get(item.stack, ()), _kind(item))
        sizes[key] = sizes.get(key, 0) + size
        faults[key] = faults.get(key, 0) + item.faults
        tids.setdefault(key, set()).add(item.tid)
    found = [
        MemoryStack(
            bytes=size,
            frames=frames,
            place=place(frames),
            threads=len(tids[frames, kind]),
            faults=faults[frames, kind],
            kind=kind,
        )
        for (frames, kind), size in sizes.items()
    ]
    found.sort(key=lambda stack: (not stack.frames, -stack.bytes, stack.frames))
    return tuple(found)


def _threads(
    growth: Growth, names: Mapping[int, tuple[str, ...]], threads: Mapping[int, Thread]
) -> tuple[MemoryThread, ...]:
    sizes: dict[int, int] = {}
    largest: dict[int, tuple[int, int]] = {}
    for item in growth.touchers:
        size = _size(item)
        if size <= 0:
            continue
        sizes[item.tid] = sizes.get(item.tid, 0) + size
        largest[item.tid] = max(largest.get(item.tid, (0, 0)), (size, item.stack))
    called = {item.tid: item.name for item in growth.threads}
    found = []
    for tid, size in sizes.items():
        thread = threads.get(tid)
        made = MemoryThread(
            tid=tid,
            bytes=size,
            name=called.get(tid, "") or (thread.name if thread is not None else ""),
            place=place(names.get(largest[tid][1], ())),
        )
        if thread is not None:
            made = msgspec.structs.replace(
                made,
                connection=thread.connection,
                user=thread.user,
                host=thread.host,
                database=thread.database,
                query=thread.query,
            )
        found.append(made)
    found.sort(key=lambda thread: (-thread.bytes, thread.tid))
    return tuple(found)


def _is_lossy(growth: Growth) -> bool:
    return any(count for cause, count in growth.lost.items() if cause != "stacks_no_room")


def _notes(growth: Growth, stacks: int) -> Iterable[str]:
    if growth.ended:
        yield (
            "the process ended or runs another program: what its stacks touched is shown, not what"
            " was left of it"
        )
    if growth.cut:
        yield "the process has more than 64 GiB of its own: what was freed is not known"
    if growth.sampled:
        yield "pages came too fast for a record of each: sums by stack are estimates"
    for program in growth.programs:
        if not program.works and program.reason:
            yield program.reason
    for cause, count in growth.lost.items():
        if count:
            yield f"lost: {cause.replace('_', ' ')}: {count}"
    if stacks > MAX_STACKS:
        yield f"only the {MAX_STACKS} largest of {stacks} stacks are listed"

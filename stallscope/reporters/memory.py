# SPDX-License-Identifier: Apache-2.0
"""Where memory grows, as text and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from stallscope.base.text import one_line
from stallscope.model.memory import Malloc, MemoryReport, MemoryStack, MemoryThread, encode
from stallscope.reporters.lines import Line, short_name, wrap
from stallscope.reporters.units import number, size

__all__ = ["TOP", "change", "dumps", "headline", "render"]

TOP = 10
"""Stacks and threads that are printed."""
_FRAMES = 6
_PATH = 10
_MAX_QUERY = 300
_KINDS = {
    "touch": "",
    "call": "by a system call",
    "populate": "made by the kernel (direct I/O, mlock)",
    "stack": "the thread's own stack",
    "hugetlb": "huge pages",
}
_BOLD = "bold"
_DIM = "dim"


def dumps(report: MemoryReport) -> str:
    """Return one line of JSON (``stallscope.memory/1``)."""
    return encode(report).decode().rstrip("\n")


def change(count: int) -> str:
    """Return a number of bytes that may be negative."""
    return size(count) if count >= 0 else f"-{size(-count)}"


def headline(report: MemoryReport) -> str:
    """Return what the report says, in one sentence."""
    who = _who(report)
    if report.source != "live":
        return f"{who}: {size(report.growth_bytes or 0)} are allocated"
    if report.growth_bytes is None:
        return f"{who} ended while it was recorded"
    seconds = f"{report.seconds:.0f} s" if report.seconds is not None else "the time"
    if report.growth_bytes < 0:
        return f"{who} shrank by {size(-report.growth_bytes)} in {seconds}"
    if not report.growth_bytes:
        return f"{who} did not grow in {seconds}"
    return f"{who} grew by {size(report.growth_bytes)} in {seconds}"


def render(report: MemoryReport, *, width: int, top: int = TOP) -> list[Line]:
    """Return the report for people; what matters most comes first."""
    return [
        *wrap(f"{headline(report)}.", width, style=_BOLD),
        *_totals(report, width),
        *_heaviest(report, width),
        *_stacks(report, width, top),
        *_threads(report, width, top),
        *_malloc(report, width),
        *(line for note in report.notes for line in wrap(f"note: {note}", width, hang="  ")),
    ]


def _who(report: MemoryReport) -> str:
    if report.source != "live":
        return one_line(report.path or report.source, 200)
    name = os.path.basename(report.exe) if report.exe else "the process"
    return f"{one_line(name, 60)} (pid {report.pid})"


def _totals(report: MemoryReport, width: int) -> Iterator[Line]:
    parts = []
    before, after = report.before, report.after
    if before is not None and after is not None:
        parts.append(f"its own memory: {size(before.own)} before, {size(after.own)} after")
    if report.freed_bytes:
        parts.append(f"{size(report.freed_bytes)} of what it had were freed")
    if report.attributed_share is not None and report.source == "live":
        share = 100 * report.attributed_share
        parts.append(f"stacks explain {share:.1f} % of what was added")
    elif report.source == "live" and report.growth_bytes is not None and report.stacks:
        parts.append("too little was added for a share that stacks explain")
    if parts:
        yield from wrap(f"{'; '.join(parts)}.", width, indent="  ", hang="  ")
    if before is not None and after is not None and after.mapped != before.mapped:
        mapped = after.mapped - before.mapped
        how = "grew" if mapped > 0 else "shrank"
        text = f"its own address space (touched or not) {how} by {size(abs(mapped))}."
        yield from wrap(text, width, indent="  ", hang="  ")
    if before is not None and after is not None and after.huge > before.huge:
        grown = size(after.huge - before.huge)
        yield from wrap(f"{grown} of it in transparent huge pages.", width, indent="  ")


def _heaviest(report: MemoryReport, width: int) -> Iterator[Line]:
    path = report.heaviest[-_PATH:]
    if not path or report.heaviest_bytes <= 0:
        return
    named = " > ".join(short_name(name) for name in path)
    share = _share(report.heaviest_bytes, report)
    yield Line("")
    yield from wrap(
        f"{size(report.heaviest_bytes)}{share} under: {named}", width, hang="  ", style=_BOLD
    )


def _total(report: MemoryReport) -> int:
    if report.added_bytes:
        return report.added_bytes
    return sum(stack.bytes for stack in report.stacks if stack.bytes > 0)


def _share(count: int, report: MemoryReport) -> str:
    total = _total(report)
    return f" ({min(100.0, 100 * count / total):.0f} %)" if total > 0 else ""


def _stacks(report: MemoryReport, width: int, top: int) -> Iterator[Line]:
    if not report.stacks:
        return
    yield Line("")
    what = "allocated" if report.source != "live" else "added"
    yield from wrap(f"{what} by (innermost function first)", width, style=_DIM)
    merged = _by_place(report.stacks)
    for stack in merged[:top]:
        yield from _stack(stack, report, width)
    rest = merged[top:]
    if rest:
        left = sum(stack.bytes for stack in rest)
        yield from wrap(f"{change(left)} in {len(rest)} more (--top, --json)", width)


def _by_place(stacks: tuple[MemoryStack, ...]) -> list[MemoryStack]:
    """Sum stacks whose shown frames are the same; the largest first."""
    found: dict[tuple[tuple[str, ...], str], MemoryStack] = {}
    for stack in stacks:
        key = (stack.place or stack.frames[:_FRAMES], stack.kind)
        known = found.get(key)
        if known is not None:
            stack = msgspec.structs.replace(
                known,
                bytes=known.bytes + stack.bytes,
                threads=max(known.threads, stack.threads),
                allocations=known.allocations + stack.allocations,
            )
        found[key] = stack
    return sorted(found.values(), key=lambda stack: (not stack.frames, -stack.bytes))


def _stack(stack: MemoryStack, report: MemoryReport, width: int) -> Iterator[Line]:
    share = _share(stack.bytes, report).strip(" ()")
    indent = f"{change(stack.bytes):>10}  {share:>6}  "
    frames = stack.place or stack.frames
    text = " < ".join(short_name(name) for name in frames[:_FRAMES])
    if len(frames) > _FRAMES:
        text += " < …"
    yield from wrap(text or "no stack is known", width, indent=indent, hang=" " * 20)
    more = [word for word in (_KINDS.get(stack.kind, ""), _many(stack)) if word]
    if more:
        yield from wrap("; ".join(more), width, indent=" " * 20, style=_DIM)


def _many(stack: MemoryStack) -> str:
    if stack.allocations:
        return "1 allocation" if stack.allocations == 1 else f"{stack.allocations} allocations"
    return f"{stack.threads} threads" if stack.threads > 1 else ""


def _threads(report: MemoryReport, width: int, top: int) -> Iterator[Line]:
    if not report.threads:
        return
    yield Line("")
    yield Line("by thread" if report.connections is None else "by connection", _BOLD)
    for thread in report.threads[:top]:
        yield from _thread(thread, width)
    rest = report.threads[top:]
    if rest:
        left = sum(thread.bytes for thread in rest)
        yield Line(f"{size(left):>10}  {len(rest)} more threads")
    if report.connections and report.bytes_per_connection is not None:
        each = size(round(report.bytes_per_connection))
        many = "1 connection" if report.connections == 1 else f"{report.connections} connections"
        yield from wrap(f"{each} for each of {many} that were there at the end", width)
    if report.thread_stack_bytes:
        yield Line(f"{size(report.thread_stack_bytes)} of it are stacks of threads")


def _thread(thread: MemoryThread, width: int) -> Iterator[Line]:
    parts = [f"thread {thread.tid}" + (f" {one_line(thread.name, 16)}" if thread.name else "")]
    if thread.connection is not None:
        parts.insert(0, f"connection {thread.connection}")
    account = "@".join(word for word in (thread.user, thread.host) if word)
    if account:
        parts.append(one_line(account, 60))
    if thread.query:
        parts.append(one_line(thread.query, _MAX_QUERY))
    elif thread.place:
        parts.append(short_name(thread.place[0]))
    yield from wrap(", ".join(parts), width, indent=f"{size(thread.bytes):>10}  ", hang=" " * 12)


def _malloc(report: MemoryReport, width: int) -> Iterator[Line]:
    malloc = report.malloc
    if malloc is None:
        return
    yield Line("")
    yield from wrap(_malloc_text(malloc), width, hang="  ")


def _malloc_text(malloc: Malloc) -> str:
    if malloc.unknown is not None or malloc.free_bytes is None or malloc.top_bytes is None:
        return f"malloc's slack is not known: {malloc.unknown or 'it was not read'}"
    least = "at least " if malloc.partial else ""
    held = malloc.system_bytes or 0
    share = f" ({100 * (malloc.free_bytes + malloc.top_bytes) / held:.0f} %)" if held else ""
    return (
        f"malloc holds {least}{size(malloc.free_bytes + malloc.top_bytes)}{share} of"
        f" {size(held)} free, in {number(malloc.arenas or 0)} arenas:"
        f" {size(malloc.free_bytes)} between used pieces, {size(malloc.top_bytes)} at the ends"
    )

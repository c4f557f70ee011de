# SPDX-License-Identifier: Apache-2.0
"""Read heap dumps of other tools, and saved results of ``stallscope memory``, as one report."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from stallscope.base import inputfile
from stallscope.base.errors import StallscopeError
from stallscope.model import memory
from stallscope.model.memory import MemoryReport

__all__ = ["read"]

_HEAD = 256
_MAX_PROBLEMS = 5


def read(path: Path, sysroot: Path | None) -> MemoryReport | None:
    """Return the report of a file; None where it is no such file, of which nothing is consumed.

    Raises: StallscopeError where it is one and cannot be read.
    """
    if str(path) == "-":
        # Standard input cannot be read twice: its beginning is read without being consumed.
        head = sys.stdin.buffer.peek(_HEAD)[:_HEAD] if hasattr(sys.stdin.buffer, "peek") else b""
        if not _is_any(head):
            return None
    elif not path.is_file():  # nor can a pipe
        return None
    source = inputfile.chunks(path)
    head = next(source, b"")
    if not _is_any(head):
        return None
    return _parse(itertools.chain([head], source), head, str(path), sysroot)


def _is_any(head: bytes) -> bool:
    from stallscope.analyzers.importers import heaptrack, jemalloc

    return memory.is_report(head) or jemalloc.is_heap_dump(head) or heaptrack.is_heaptrack(head)


def _parse(chunks: Iterator[bytes], head: bytes, name: str, sysroot: Path | None) -> MemoryReport:
    from stallscope.analyzers.importers import jemalloc

    if memory.is_report(head):
        return memory.decode_report(_whole(chunks, memory.MAX_BYTES, name), name)
    if jemalloc.is_heap_dump(head):
        return _jemalloc(_whole(chunks, jemalloc.MAX_BYTES, name), name, sysroot)
    return _heaptrack(chunks, name)


def _whole(chunks: Iterable[bytes], limit: int, name: str) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > limit:
            raise StallscopeError(f"{name}: more than {limit >> 20} MiB: it is not read")
    return bytes(data)


def _jemalloc(data: bytes, name: str, sysroot: Path | None) -> MemoryReport:
    from stallscope.analyzers import memory as analyzer
    from stallscope.analyzers.importers import jemalloc
    from stallscope.collectors import heapsymbols

    dump = jemalloc.parse(data, name)
    named = heapsymbols.name(dump, sysroot=sysroot)
    notes = [
        f"jemalloc samples one allocation in {dump.period} bytes: sizes are scaled up from that",
    ]
    if dump.mappings:
        notes.append("names are those of this machine's files: the dump does not say which it had")
    notes += named.problems[:_MAX_PROBLEMS]
    if len(named.problems) > _MAX_PROBLEMS:
        notes.append(f"{len(named.problems) - _MAX_PROBLEMS} more files without names")
    stacks = (
        (stack.bytes, stack.objects, frames)
        for stack, frames in zip(dump.stacks, named.stacks, strict=True)
    )
    return analyzer.of_heap(
        "jemalloc",
        name,
        stacks,
        notes=(*notes, *_unreadable(dump.bad_lines)),
        complete=not dump.bad_lines,
    )


def _heaptrack(chunks: Iterable[bytes], name: str) -> MemoryReport:
    from stallscope.analyzers import memory as analyzer
    from stallscope.analyzers.importers import heaptrack

    heap = heaptrack.parse(chunks, name)
    notes = [f"at its peak it had {heap.peak_bytes} bytes; shown is what is not released"]
    if heap.is_attached:
        notes.append("heaptrack was attached later: what was allocated before is not in the file")
    return analyzer.of_heap(
        "heaptrack",
        name,
        heap.stacks,
        exe=heap.command.split(" ")[0] or None,
        seconds=heap.seconds,
        notes=(*notes, *_unreadable(heap.bad_lines)),
        complete=not heap.bad_lines,
    )


def _unreadable(lines: int) -> tuple[str, ...]:
    if not lines:
        return ()
    return (f"{lines} lines cannot be read" if lines > 1 else "1 line cannot be read",)

# SPDX-License-Identifier: Apache-2.0
"""Collapsed stacks: frames from the outermost with semicolons, a blank, how many threads.

flamegraph.pl, inferno, speedscope and many others read it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from stallscope.reporters.export.source import Entry, Options, Row, rows, thread_title

__all__ = ["render"]

# flamegraph.pl reads two numbers at the end of a line as counts before and after.
_TAIL = re.compile(r"\s+(?=\d+(?:\.\d*)?$)")
_KERNEL = "_[k]"


def render(entries: Iterable[Entry], options: Options) -> Iterator[bytes]:
    """Return all stacks of all captures, each with the sum of its threads, sorted."""
    counts: Counter[str] = Counter()
    for entry in entries:
        for row in rows(entry, options):
            counts[_line(row, options)] += row.thread.count
    for line in sorted(counts):
        yield f"{line} {counts[line]}\n".encode()


def _line(row: Row, options: Options) -> str:
    parts = []
    if options.threads:
        parts.append(_part(thread_title(row.thread)))
    if options.states:
        parts.append(f"[{row.state}]")
    parts.append(_stack(row.names, row.kernel))
    return ";".join(parts)


@lru_cache(maxsize=4096)
def _stack(names: tuple[str, ...], kernel: int) -> str:
    parts = [_part(name) for name in reversed(names[kernel:])]
    parts += [_part(name) + _KERNEL for name in reversed(names[:kernel])]
    return _TAIL.sub("_", ";".join(parts))


def _part(name: str) -> str:
    return name.replace(";", ":").strip() or "??"

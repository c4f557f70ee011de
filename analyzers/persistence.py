# SPDX-License-Identifier: Apache-2.0
"""Threads followed across captures: for how long each was in one wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stallscope.model.capture import Capture, Thread

__all__ = ["Persistence", "follow"]

SHORT_NS = 200 * 10**6
"""Captures that are farther apart do not show that a wait between them was short."""


class Persistence(NamedTuple):
    """What other captures say of the waits of one capture, thread by thread."""

    runs: tuple[int, ...]
    """How many captures in a row show this very wait. A thread that ran in between, and waits in
    the same place again, is in another wait. 0: not known, because the source does not count
    context switches."""
    lasted_ns: tuple[int, ...]
    """From the first to the last of these captures; 0: not known."""
    short: tuple[bool, ...]
    """Whether the wait began after the capture before, ended before the next one, and both are
    near."""


def follow(captures: Sequence[Capture]) -> list[Persistence]:
    """Follow all threads through captures of one server, in the order of their time."""
    counts, first, last = _runs(captures)
    times = [capture.time_ns or 0 for capture in captures]
    known = all(times)
    found = []
    for number in range(len(captures)):
        near = known and 0 < number < len(captures) - 1
        near = near and times[number + 1] - times[number - 1] <= SHORT_NS
        lasted = [
            max(0, times[end] - times[begin]) if known else 0
            for begin, end in zip(first[number], last[number], strict=True)
        ]
        found.append(
            Persistence(
                tuple(counts[number]),
                tuple(lasted),
                tuple(near and count == 1 for count in counts[number]),
            )
        )
    return found


def _runs(captures: Sequence[Capture]) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Return for each thread of each capture the length of its run, its first and last capture."""
    counts: list[list[int]] = []
    first: list[list[int]] = []
    links: list[list[int | None]] = []
    for number, capture in enumerate(captures):
        link: list[int | None] = [None] * len(capture.threads)
        if number:
            link = _links(captures[number - 1], capture)
        pairs = list(zip(capture.threads, link, strict=True))
        counts.append(
            [_known(thread) if at is None else counts[-1][at] + 1 for thread, at in pairs]
        )
        first.append([number if at is None else first[-1][at] for _, at in pairs])
        links.append(link)
    last = [[number] * len(capture.threads) for number, capture in enumerate(captures)]
    # The length of a run is known at its last capture: carry it back.
    for number in range(len(captures) - 1, 0, -1):
        for index, at in enumerate(links[number]):
            if at is not None:
                counts[number - 1][at] = counts[number][index]
                last[number - 1][at] = last[number][index]
    return counts, first, last


def _links(before: Capture, capture: Capture) -> list[int | None]:
    """Return for each thread its index in the capture before, None where it is another wait."""
    if len(before.threads) == len(capture.threads) and all(
        one.tid == other.tid for one, other in zip(before.threads, capture.threads, strict=True)
    ):
        return [
            index if _is_same_wait(one, other) else None
            for index, (one, other) in enumerate(zip(before.threads, capture.threads, strict=True))
        ]
    known = {(thread.process, thread.tid): index for index, thread in enumerate(before.threads)}
    found: list[int | None] = []
    for thread in capture.threads:
        at = known.get((thread.process, thread.tid)) if thread.tid else None
        same = at is not None and _is_same_wait(before.threads[at], thread)
        found.append(at if same else None)
    return found


def _known(thread: Thread) -> int:
    return 0 if thread.switches is None else 1


def _is_same_wait(before: Thread, after: Thread) -> bool:
    """Return whether the thread is known not to have run in between."""
    if before.on_cpu or after.on_cpu or after.switches is None:
        return False
    return before is after or before.switches == after.switches

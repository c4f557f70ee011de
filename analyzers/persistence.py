# SPDX-License-Identifier: Apache-2.0
"""Threads followed across captures: for how many captures each was in one wait."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.model.capture import Capture, Thread

__all__ = ["runs"]


def runs(captures: Sequence[Capture]) -> list[tuple[int, ...]]:
    """Return for each thread of each capture how many captures in a row show this very wait.

    A thread that ran in between, and waits in the same place again, is in another wait. 0: not
    known, because the source does not count context switches.
    """
    sofar: list[list[int]] = []
    links: list[list[int | None]] = []
    for number, capture in enumerate(captures):
        if number == 0:
            sofar.append([_known(thread) for thread in capture.threads])
            links.append([None] * len(capture.threads))
            continue
        before = captures[number - 1]
        link = _links(before, capture)
        counts = [
            _known(thread) if at is None else sofar[-1][at] + 1
            for thread, at in zip(capture.threads, link, strict=True)
        ]
        sofar.append(counts)
        links.append(link)
    # The length of a run is known at its last capture: carry it back.
    for number in range(len(captures) - 1, 0, -1):
        for index, at in enumerate(links[number]):
            if at is not None:
                sofar[number - 1][at] = sofar[number][index]
    return [tuple(counts) for counts in sofar]


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

# SPDX-License-Identifier: Apache-2.0
"""Say how much of a capture is right, where what is right is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.bench.stats import BenchError
from tests.bench.tools import Taken
from tests.support.targets import Fact

__all__ = ["describe", "is_named", "right_stacks", "verified_right", "whole_stacks"]


def is_named(taken: Taken) -> bool:
    """Return whether the tool names functions at all."""
    return any(name for stack in taken.stacks for name in stack.names)


def right_stacks(facts: Sequence[Fact], taken: Taken) -> int:
    """Return how many of the known threads have exactly their frames, libc's left out.

    Where a tool prints addresses alone, a stack counts that has enough of them.
    """
    if not is_named(taken):
        depths = {stack.tid: len(stack.names) for stack in taken.stacks}
        return sum(depths.get(fact.tid, 0) >= len(fact.expected()) for fact in facts)
    own = {name for fact in facts for name in fact.expected()}
    wanted = {fact.tid: tuple(fact.expected()) for fact in facts}
    right = 0
    aggregated: Counter[tuple[str, ...]] = Counter()
    for stack in taken.stacks:
        names = tuple(name for name in stack.names if name in own)
        if not stack.tid:
            aggregated[names] += stack.count
        elif wanted.get(stack.tid) == names:
            right += 1
    if aggregated:
        known = Counter(wanted.values())
        right += sum(min(count, aggregated[names]) for names, count in known.items())
    return right


def verified_right(facts: Sequence[Fact], taken: Taken, name: str) -> None:
    """Raise BenchError unless every blocked thread is there with all of its frames."""
    right = right_stacks(facts, taken)
    if right != len(facts):
        raise BenchError(f"{name}: {right} of {len(facts)} stacks are right")


IO_URING_WORKER = "iou-wrk-"
"""How Linux names them; they are threads of the process, and have no stack but the kernel's."""


def whole_stacks(taken: Taken) -> tuple[int, int]:
    """Return how many stacks of a capture of ours reach their thread's start, and of how many."""
    assert taken.capture is not None
    threads = [
        thread for thread in taken.capture.threads if not thread.name.startswith(IO_URING_WORKER)
    ]
    return sum(thread.unwind == "complete" for thread in threads), len(threads)


def describe(taken: Taken) -> str:
    """Return what is in a capture of which nobody knows what is right."""
    frames = sum(len(stack.names) * stack.count for stack in taken.stacks)
    named = sum(stack.count for stack in taken.stacks for name in stack.names if name)
    each = frames / taken.threads
    return f"{taken.threads} threads, {each:.0f} frames each, {named / frames:.0%} named"

# SPDX-License-Identifier: Apache-2.0
"""Say how much of a capture is right, where what is right is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from targets import Fact

from benches.stats import BenchError
from benches.tools import Stack, Taken

__all__ = ["complete", "is_named", "right_stacks", "verified_right"]

OUTERMOST = ("clone3", "__clone3", "clone", "__clone", "_start", "start_thread", "main")


def is_named(taken: Taken) -> bool:
    """Say whether the tool names functions at all."""
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


def complete(stack: Stack) -> bool:
    """Say whether a stack with names reaches the function that every thread starts in."""
    return any(name.split("@")[0] in OUTERMOST for name in stack.names[-3:])

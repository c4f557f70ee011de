# SPDX-License-Identifier: Apache-2.0
"""Waits for the mutex of ``target-known_waits``, as the wait programs and the rings report them."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.model.waitlines import WaitLine
from tests.support.known_waits import Made, make
from tests.support.targets import Target
from tests.support.watching import Waits, key_of

__all__ = ["HOLDER", "WAITER", "assert_convoy", "assert_nothing_lost", "own"]

WAITER = ["wait_for_the_mutex", "waiter_main"]
HOLDER = ["hold_the_mutex", "holder_main"]


def own(frames: Sequence[str]) -> list[str]:
    """Return the frames that are the target's, without libc's around them."""
    return [frame for frame in frames if frame in (*WAITER, *HOLDER)]


def assert_nothing_lost(line: WaitLine, *but: str) -> None:
    """Assert that nothing was lost, or for these causes alone."""
    assert {cause for cause, count in line.lost.items() if count} <= {*but}


def assert_convoy(watch: Waits, target: Target, made: Made, line: WaitLine) -> None:
    """Assert that a line and the events show all waiters; release the mutex, and check again."""
    count = len(made.calls)
    key = key_of(line, "mutex", "the_mutex")
    assert (key.in_flight, key.owner_tid) == (count, made.holder)
    assert key.longest_in_flight_ms >= 1.0
    reported = {event.tid: event for event in watch.events if event.kind == "mutex"}
    assert set(reported) == {call.tid for call in made.calls}
    for event in reported.values():
        assert event.in_flight
        assert own(event.frames) == WAITER
        assert event.owner_tid == made.holder
    # The last of them to fall asleep met all others.
    assert max(event.waiters for event in reported.values()) == count
    # As long as it goes on, each line has it.
    (stack,) = key_of(watch.line(), "mutex", "the_mutex").waiters
    assert (stack.count, own(stack.frames)) == (count, WAITER)
    make(target, "release")
    key = key_of(watch.finish(), "mutex", "the_mutex")
    # What was counted while it went on is not counted again at its end.
    assert sum(stack.count for stack in key.waiters) == count
    assert (key.count, key.in_flight) == (count, 0)

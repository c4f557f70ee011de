# SPDX-License-Identifier: Apache-2.0
"""Ask tests/targets/known_waits.c for waits, and know how long each of them was."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.support.targets import Target, TargetError

__all__ = ["Call", "Made", "known_waits", "make"]


class Call(msgspec.Struct, frozen=True):
    """One wait, by the clock of the thread that waited. Times are CLOCK_MONOTONIC."""

    tid: int
    start_ns: int
    length_ns: int
    asleep_ns: int
    """When a waiter for a lock was seen asleep; 0 for files."""
    released_ns: int
    voluntary: int
    involuntary: int
    """Times that the thread was preempted, perhaps between its wait and its read of the clock."""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


class Made(msgspec.Struct, frozen=True):
    """What a command has made: a lock has an address and a holder, a file operation a path."""

    operation: str
    calls: tuple[Call, ...]
    path: str | None = None
    address: str | None = None
    holder: int | None = None


def known_waits(
    folder: Path,
    waiters: int = 1,
    idle: int = 4,
    depth: int = 1,
    env: dict[str, str] | None = None,
    *,
    staged: bool = False,
    calm: bool = False,
) -> Target:
    """Return the target, not started yet, with its files in ``folder``.

    It has ``waiters`` + ``idle`` + 5 threads. ``staged``: the in-process library is loaded into it,
    and a holder of a lock counts from when each waiter has looked up for the first time. ``calm``:
    no thread waits for a lock forever.
    """
    options = {"--waiters": waiters, "--idle": idle, "--depth": depth}
    if staged:
        options["--staged"] = 1
    if calm:
        options["--calm"] = 1
    words = (word for name, value in options.items() for word in (name, str(value)))
    return Target("known_waits", str(folder), *words, env=env)


def make(target: Target, command: str) -> Made:
    """Have the target make waits: ``mutex COUNT MS [WAITERS]``, ``fsync COUNT``, ..."""
    answer = target.ask(command)
    if "error" in answer:
        raise TargetError(f"{target.name}: {command}: {answer['error']}")
    return msgspec.convert(answer, type=Made)

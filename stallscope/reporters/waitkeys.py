# SPDX-License-Identifier: Apache-2.0
"""Locks and files in the order of reports; their stacks, each once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stallscope.model.waitkinds import IDLE_KINDS
from stallscope.model.waitlines import HolderStack, Key, WaiterStack

__all__ = ["arrange", "same_holders", "same_waiters", "waited"]


def arrange(keys: Iterable[Key]) -> list[Key]:
    """Return them sorted by wait time; those of idle threads come last."""
    return sorted(keys, key=lambda key: (key.kind in IDLE_KINDS, -waited(key)))


def waited(key: Key) -> float:
    """Return the time waited in ms; waits in flight count with their length so far."""
    return key.total_ms + key.longest_in_flight_ms


def same_waiters(stacks: Iterable[WaiterStack]) -> list[WaiterStack]:
    """Return each distinct stack, with the waits of all equal ones."""
    sums: dict[tuple[tuple[str, ...], str | None], WaiterStack] = {}
    for stack in stacks:
        place = (stack.frames, stack.label)
        old = sums.get(place)
        sums[place] = (
            stack
            if old is None
            else msgspec.structs.replace(
                old, count=old.count + stack.count, total_ms=old.total_ms + stack.total_ms
            )
        )
    return list(sums.values())


def same_holders(stacks: Iterable[HolderStack]) -> list[HolderStack]:
    """Return each distinct stack, with the wakes of all equal ones, and the latest thread."""
    sums: dict[tuple[tuple[str, ...], str | None], HolderStack] = {}
    for stack in stacks:
        place = (stack.frames, stack.label)
        old = sums.get(place)
        count = stack.count if old is None else old.count + stack.count
        sums[place] = msgspec.structs.replace(stack, count=count)
    return list(sums.values())

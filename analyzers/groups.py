# SPDX-License-Identifier: Apache-2.0
"""Threads grouped by stack, as users of pt-pmp read them: count, then frames from the innermost."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.analyzers.analysis import Group
from stallscope.analyzers.stacks import Stacks
from stallscope.analyzers.waits import IDLE
from stallscope.model import Capture

__all__ = ["group"]


def group(
    capture: Capture, stacks: Stacks, states: Sequence[str], *, frames: int | None = None
) -> tuple[Group, ...]:
    """Group threads of one state whose stacks have the same names; idle groups come last.

    ``frames``: compare and show only that many, from the innermost; None: all.
    """
    members: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, shape in enumerate(stacks.shapes):
        members.setdefault((states[index], shape.frames[:frames]), []).append(index)
    groups = [
        Group(
            count=sum(capture.threads[index].count for index in threads),
            state=state,
            frames=names,
            threads=tuple(threads),
            idle=state == IDLE,
        )
        for (state, names), threads in members.items()
    ]
    groups.sort(key=lambda g: (g.idle, -g.count, g.frames))
    return tuple(groups)

# SPDX-License-Identifier: Apache-2.0
"""Threads grouped by stack, as in pt-pmp: count, then frames from the innermost."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from stallscope.analyzers.analysis import Group
from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.stacks import Shape, Stacks
from stallscope.analyzers.waits import IDLE, UNSEEN
from stallscope.model.capture import Capture

__all__ = ["BY", "Grouping", "group"]

BY = ("stack", "leaf", "root")


class Grouping(msgspec.Struct, frozen=True):
    """What makes a group, and which threads are counted."""

    frames: int | None = None
    """That many frames; None: all of a stack, one of a leaf or root."""
    by: str = "stack"
    """``stack``: from the innermost frame. ``leaf``: from the one that waits or works,
    after those that carry out its wait. ``root``: the outermost ones, after those that start a
    thread."""
    threads: re.Pattern[str] | None = None
    """Only threads whose name or id contains this."""


def group(
    capture: Capture,
    stacks: Stacks,
    states: Sequence[str],
    catalog: Catalog,
    grouping: Grouping = Grouping(),  # noqa: B008 (it cannot change)
) -> tuple[Group, ...]:
    """Group threads of one state whose stacks have the same names; idle groups come last."""
    members: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    keys: dict[int, tuple[str, ...]] = {}
    for index, shape in enumerate(stacks.shapes):
        if grouping.threads is not None:
            thread = capture.threads[index]
            if not (
                grouping.threads.search(thread.name) or grouping.threads.search(str(thread.tid))
            ):
                continue
        key = keys.get(id(shape))
        if not shape.frames:  # a server's own list has no stacks, but an activity of each thread
            said = capture.threads[index].activity or capture.threads[index].command
            key = (f"[{said}]",) if said else ()
        elif key is None:
            key = keys[id(shape)] = _key(shape, catalog, grouping)
        members.setdefault((states[index], key), []).append(index)
    groups = [
        Group(
            count=sum(capture.threads[index].count for index in threads),
            state=state,
            frames=names,
            threads=tuple(threads),
            idle=state in (IDLE, UNSEEN),
        )
        for (state, names), threads in members.items()
    ]
    groups.sort(key=lambda g: (g.idle, -g.count, g.frames))
    return tuple(groups)


def _key(shape: Shape, catalog: Catalog, grouping: Grouping) -> tuple[str, ...]:
    frames = shape.frames
    if grouping.by == "leaf":
        start = min(shape.depth, max(0, len(frames) - 1))
        return frames[start : start + (grouping.frames or 1)]
    if grouping.by == "root":
        end = len(frames)
        while end > 1 and end <= len(shape.masks) and shape.masks[end - 1] & catalog.thread_start:
            end -= 1
        return frames[max(0, end - (grouping.frames or 1)) : end]
    return frames[: grouping.frames]

# SPDX-License-Identifier: Apache-2.0
"""How the threads of a capture spread over subsystems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stallscope.analyzers.analysis import Share
from stallscope.analyzers.stacks import Stacks
from stallscope.analyzers.subsystems import Subsystems
from stallscope.analyzers.waits import IDLE
from stallscope.model.capture import Capture

__all__ = ["shares"]


def shares(
    capture: Capture, stacks: Stacks, states: Sequence[str], subsystems: Subsystems
) -> tuple[Share, ...]:
    """Return how many of the threads that are not idle are in each subsystem, most first."""
    counts: Counter[str] = Counter()
    for thread, shape, state in zip(capture.threads, stacks.shapes, states, strict=True):
        if state != IDLE and shape.frames:
            counts[subsystems.of_stack(shape.names, shape.depth)] += thread.count
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Share(name, count, round(count / total, 4)) for name, count in ordered)

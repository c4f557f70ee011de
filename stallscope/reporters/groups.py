# SPDX-License-Identifier: Apache-2.0
"""Fold groups of threads and count threads, for every reporter alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stallscope.analyzers.analysis import Analysis, Group
from stallscope.model import Label

__all__ = ["count_labels", "count_states", "count_threads", "fold", "target_process"]


def fold(groups: Sequence[Group], lines: int | None) -> tuple[Group, ...]:
    """Make groups equal that agree in their first ``lines`` frames; the largest first."""
    if lines is None:
        return tuple(groups)
    merged: dict[tuple[bool, str, tuple[str, ...]], list[Group]] = {}
    for group in groups:
        merged.setdefault((group.idle, group.state, group.frames[:lines]), []).append(group)
    folded = [
        Group(
            count=sum(group.count for group in parts),
            state=state,
            frames=frames,
            threads=tuple(thread for group in parts for thread in group.threads),
            idle=idle,
        )
        for (idle, state, frames), parts in merged.items()
    ]
    return tuple(sorted(folded, key=lambda group: -group.count))


def count_threads(analysis: Analysis) -> int:
    """Return how many threads the capture stands for."""
    return sum(thread.count for thread in analysis.capture.threads)


def count_states(analysis: Analysis) -> Counter[str]:
    """Return the number of threads in each state."""
    counter: Counter[str] = Counter()
    for thread, state in zip(analysis.capture.threads, analysis.states, strict=True):
        counter[state] += thread.count
    return counter


def count_labels(analysis: Analysis) -> dict[str, int]:
    """Return the number of threads with each label; imported dumps have none."""
    labels = {str(label): 0 for label in Label}
    for thread in analysis.capture.threads:
        if thread.label is not None:
            labels[thread.label] += thread.count
    return labels


def target_process(analysis: Analysis) -> int | None:
    """Return the index of the server's main process: the one that is no other's child."""
    processes = analysis.capture.processes
    pids = {process.pid for process in processes}
    for i, process in enumerate(processes):
        if process.ppid not in pids or process.ppid == process.pid:
            return i
    return 0 if processes else None

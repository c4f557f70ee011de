# SPDX-License-Identifier: Apache-2.0
"""Count threads, for every reporter alike."""

from __future__ import annotations

from collections import Counter

from stallscope.analyzers.analysis import Analysis
from stallscope.model import Label

__all__ = ["count_labels", "count_states", "count_threads", "target_process"]


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

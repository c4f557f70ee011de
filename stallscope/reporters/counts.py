# SPDX-License-Identifier: Apache-2.0
"""Count threads, in the same way for all reporters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from stallscope.analyzers.analysis import Analysis, Blocker
from stallscope.analyzers.waits import IDLE, UNSEEN
from stallscope.model.capture import Label, Thread

__all__ = [
    "blocker_thread",
    "count_labels",
    "count_states",
    "count_threads",
    "count_unseen",
    "counted_state",
    "label_counts",
    "target_process",
    "thread_of",
    "trust",
]


def count_threads(analysis: Analysis) -> int:
    """Return how many threads the capture represents."""
    return sum(thread.count for thread in analysis.capture.threads)


def count_states(analysis: Analysis) -> Counter[str]:
    """Return the number of waiting, running, idle and incomplete threads; unseen ones count as
    idle."""
    counter: Counter[str] = Counter()
    for thread, state in zip(analysis.capture.threads, analysis.states, strict=True):
        counter[counted_state(state)] += thread.count
    return counter


def counted_state(state: str) -> str:
    """Return the state that a thread is counted under: that of an unseen one is idle."""
    return IDLE if state == UNSEEN else state


def count_unseen(analysis: Analysis) -> int:
    """Return how many threads sleep in calls that the in-process library does not watch."""
    pairs = zip(analysis.capture.threads, analysis.states, strict=True)
    return sum(thread.count for thread, state in pairs if state == UNSEEN)


def count_labels(analysis: Analysis) -> dict[str, int]:
    """Return the number of threads with each label; imported dumps have none."""
    return label_counts(analysis.capture.threads)


def label_counts(threads: Iterable[Thread]) -> dict[str, int]:
    """Return the number of threads with each label."""
    labels = {str(label): 0 for label in Label}
    for thread in threads:
        if thread.label is not None:
            labels[thread.label] += thread.count
    return labels


def thread_of(analysis: Analysis, tid: int) -> Thread | None:
    """Return the thread with this id."""
    if not tid:
        return None
    return next((thread for thread in analysis.capture.threads if thread.tid == tid), None)


def blocker_thread(analysis: Analysis, blocker: Blocker) -> Thread | None:
    """Return the thread of a blocker, where the capture has it."""
    if blocker.thread is not None:
        return analysis.capture.threads[blocker.thread]
    return thread_of(analysis, blocker.tid)


def trust(threads: Sequence[Thread]) -> str:
    """Return doubts about the stacks of these threads; empty: they are exact and complete. Dumps of
    other tools have no labels, so there is nothing to say about them.
    """
    labels: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for thread in threads:
        if thread.label not in (None, Label.VERIFIED):
            labels[str(thread.label)] += thread.count
        if thread.unwind not in ("complete", "not-tried"):
            ends[thread.unwind] += thread.count
    parts = [f"{count} {label}" for label, count in sorted(labels.items())]
    parts += [f"{count} cut: {end}" for end, count in sorted(ends.items())]
    return f"[{', '.join(parts)}]" if parts else ""


def target_process(analysis: Analysis) -> int | None:
    """Return the index of the server's main process: the one whose parent is not in the capture."""
    processes = analysis.capture.processes
    pids = {process.pid for process in processes}
    for i, process in enumerate(processes):
        if process.ppid not in pids or process.ppid == process.pid:
            return i
    return 0 if processes else None

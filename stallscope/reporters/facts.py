# SPDX-License-Identifier: Apache-2.0
"""How a capture was taken, and what could not be read, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.waits import kernel_worker, unseen
from stallscope.base.times import local
from stallscope.model.capture import BurstEnd, Capture
from stallscope.reporters.counts import count_labels
from stallscope.reporters.lines import threads_text
from stallscope.reporters.sentence import Speaker

__all__ = ["checked", "taken", "unread"]


def checked(analysis: Analysis) -> list[str]:
    """Return what was checked: captures, threads, connections, locks."""
    capture = analysis.capture
    stacks = sum(t.count for t in capture.threads if t.frames)
    if capture.time_ns is not None and _is_ring(analysis):
        return [f"the ring of {threads_text(stacks)}, {_as_of(capture.time_ns)}"]
    times = "" if analysis.captures == 1 else f" in {analysis.captures} captures"
    found = [f"the stacks of {threads_text(stacks)}{times}"]
    if analysis.captures == 1 and not any(t.label for t in capture.threads):
        return [f"the {threads_text(stacks)} of the dump"]
    connections = sum(t.connection is not None for t in capture.threads)
    if connections:
        found.append(f"{connections} connections, their transactions and lock waits")
    else:
        found.append("no connections and no statements")
    return found


def taken(analysis: Analysis) -> Iterator[str]:
    """Yield backend, exactness, duration and file of the capture."""
    capture = analysis.capture
    backend = f"backend: {capture.backend}"
    if capture.backend_reason:
        backend += f" ({capture.backend_reason.removeprefix(f'{capture.backend}: ')})"
    yield backend
    if capture.time_ns is not None and _is_ring(analysis):
        yield _as_of(capture.time_ns)
    yield Speaker(analysis).states()
    labels = count_labels(analysis)
    if any(labels.values()):
        yield "stacks: " + ", ".join(f"{count} {label}" for label, count in labels.items())
    else:
        yield "stacks: as in the dump, which does not say how exact they are"
    yield _stopped(capture)
    if capture.burst is not None:
        yield _burst(analysis, capture.burst)
    times = [
        f"{name} {value / 1e6:.1f} ms"
        for name, value in (("snapshot", capture.snapshot_ns), ("capture", capture.elapsed_ns))
        if value is not None
    ]
    if times:
        yield ", ".join(times)
    if capture.path is not None:
        yield f"file: {capture.path}"
    elif analysis.inputs:
        source = analysis.inputs[0]
        yield f"file: {source['path']} ({source['format']})"


def _is_ring(analysis: Analysis) -> bool:
    return any(item["format"] == "ring" for item in analysis.inputs)


def _as_of(time_ns: int) -> str:
    return f"as of {local(time_ns)}, the last moment in the ring"


def _burst(analysis: Analysis, burst: BurstEnd) -> str:
    text = f"{burst.taken} captures of {burst.wanted}, the one that shows it best is shown"
    if burst.failed:
        text += f"; {burst.failed} failed"
    if burst.ended is not None:
        text += f"; {burst.ended}"
    if analysis.cpu is not None and analysis.cpu.lost:
        text += f"; {analysis.cpu.lost} samples lost"
    return text


def _stopped(capture: Capture) -> str:
    stopped = [t for t in capture.threads if t.stopped_ns > 0]
    if stopped:
        longest = max(capture.stopped_ns, *(t.stopped_ns for t in stopped)) / 1e6
        count = sum(t.count for t in stopped)
        return f"{threads_text(count)} stopped, the longest for {longest:.3f} ms"
    if not any(t.label is not None for t in capture.threads):
        return "threads stopped: the dump does not say"
    return "0 threads stopped (stopped_ns 0)"


def unread(capture: Capture) -> list[str]:
    """Return what is missing: notes of the capture, incomplete and missing stacks."""
    notes = Counter(f"{note.message} [{note.code}]" for note in capture.notes)
    items = [text if n == 1 else f"{text} ({n} times)" for text, n in notes.items()]
    cut: Counter[str] = Counter()
    for thread in capture.threads:
        if thread.unwind not in ("complete", "not-tried"):
            cut[thread.unwind] += thread.count
        elif not (thread.frames or kernel_worker(thread) or unseen(thread)):
            cut["not-tried"] += thread.count
    without = cut.pop("not-tried", 0)
    for why, count in sorted(cut.items()):
        what = "1 stack ends" if count == 1 else f"{count} stacks end"
        whose = "its" if count == 1 else "their"
        items.append(f"{what} before {whose} outermost frame ({why})")
    if without:
        items.append(f"{threads_text(without)} without a stack")
    return items

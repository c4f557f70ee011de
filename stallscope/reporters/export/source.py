# SPDX-License-Identifier: Apache-2.0
"""The input of all formats: captures with their analyses, and the threads in them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.names import display
from stallscope.base.text import clean
from stallscope.model.capture import Capture, Frame, Lock, Thread
from stallscope.model.incident import Incident
from stallscope.model.samples import Sample
from stallscope.model.waitlines import WaitLine

__all__ = [
    "NO_STACK",
    "Entry",
    "History",
    "Options",
    "Row",
    "lock_name",
    "process_name",
    "rows",
    "source_line",
    "thread_title",
    "tool",
]

NO_STACK = "[no stack]"


class Entry(msgspec.Struct, frozen=True):
    """One of the exported captures. ``name``: for people."""

    name: str
    analysis: Analysis
    incident: str | None = None
    """Its id, where the capture is one of an incident."""


class History(msgspec.Struct, frozen=True):
    """What an incident has in addition to its captures."""

    incident: Incident
    samples: tuple[Sample, ...] = ()
    waits: tuple[WaitLine, ...] = ()


class Options(msgspec.Struct, frozen=True):
    """``title`` names the whole export."""

    title: str = "stallscope"
    idle: bool = True
    """Include idle threads."""
    kernel: bool = False
    """Include kernel frames."""
    threads: bool = False
    """In formats that cannot name threads: add the thread as the outermost frame."""
    states: bool = False
    """The same for the thread's state."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One thread. ``names`` are safe to print and innermost first, one for each of ``frames``."""

    index: int
    """Index into Capture.threads."""
    thread: Thread
    state: str
    names: tuple[str, ...]
    frames: tuple[Frame, ...]
    """Empty where the one name replaces a missing stack."""
    kernel: int
    """How many of the first ones are kernel frames."""
    key: tuple[int, int] | None
    """Equal for threads of this capture with the same stack; None where ``frames`` is empty."""


def rows(entry: Entry, options: Options) -> Iterator[Row]:
    """Yield the threads of a capture, group by group."""
    threads = entry.analysis.capture.threads
    kernels: dict[int, tuple[str, ...]] = {}
    for group in entry.analysis.groups:
        if group.idle and not options.idle:
            continue
        user = tuple(clean(name) for name in group.frames)
        for index in group.threads:
            thread = threads[index]
            frames, names = thread.frames, user
            if len(frames) != len(user):  # the activity in place of frames
                frames = ()
            kernel = thread.kernel_frames if options.kernel else ()
            if kernel:
                above = kernels.get(id(kernel))
                if above is None:
                    above = kernels[id(kernel)] = tuple(clean(display(frame)) for frame in kernel)
                names = above + (names if frames else ())
                frames = kernel + frames
            key = (id(thread.frames), id(kernel)) if frames else None
            yield Row(index, thread, group.state, names or (NO_STACK,), frames, len(kernel), key)


def source_line(frame: Frame) -> tuple[str, int]:
    """Return the file, safe to print, and the line of a frame; "" and 0 where not known."""
    file, _, line = (frame.source or "").rpartition(":")
    if file and line.isascii() and line.isdigit() and len(line) < 10:
        return clean(file), int(line)
    return clean(frame.source or ""), 0


def thread_title(thread: Thread) -> str:
    """Return a thread's name and id, safe to print."""
    name = clean(thread.name) or "thread"
    return f"{name}-{thread.tid}" if thread.tid else name


def lock_name(lock: Lock) -> str:
    """Return a lock's name, else its address, safe to print."""
    return clean(lock.symbol) if lock.symbol else f"{lock.address:#x}"


def process_name(capture: Capture, index: int) -> str:
    """Return the name of a process of a capture, safe to print."""
    if not 0 <= index < len(capture.processes):
        return "process"
    process = capture.processes[index]
    return clean(process.comm or (process.exe or "").rsplit("/", 1)[-1] or "process")


def tool() -> str:
    """Return what says that it made a file."""
    from stallscope.base import package

    return f"stallscope {package.version()}"

# SPDX-License-Identifier: Apache-2.0
"""The progress of long work: a bar on standard error if that is a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stallscope.base.text import one_line

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["of_bytes", "of_files", "of_items", "of_steps", "while_waiting"]

T = TypeVar("T")

_PATIENCE = 0.7
"""Seconds of waiting before a message is printed."""
_NAME = 40
_shown = threading.Lock()
"""Held by the one visible bar: two would overwrite each other."""


def _wanted() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _bar(*columns: object) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,  # type: ignore[arg-type]
        TimeElapsedColumn(),
        console=Console(file=sys.stderr, markup=False, emoji=False, highlight=False),
        transient=True,
        refresh_per_second=5,
        redirect_stdout=False,
        redirect_stderr=True,
    )


@contextmanager
def _only_one(bar: Progress) -> Iterator[bool]:
    """Show the bar unless another one is visible."""
    if not _shown.acquire(blocking=False):
        yield False
        return
    try:
        with bar:
            yield True
    finally:
        _shown.release()


def of_files(paths: Iterable[Path], *, printing: bool) -> Iterator[Path]:
    """Yield the paths and show how many are done.

    ``printing``: results are printed at once; on a terminal they show the progress.
    """
    if not _wanted() or (printing and sys.stdout.isatty()):
        yield from paths
        return
    from rich.progress import MofNCompleteColumn

    known: Sequence[Path] = tuple(paths)
    bar = _bar(MofNCompleteColumn())
    with _only_one(bar):
        task = bar.add_task("reading", total=len(known))
        for path in known:
            bar.update(task, description=f"reading {one_line(path.name, _NAME)}")
            yield path
            bar.advance(task)


def of_bytes(chunks: Iterable[bytes], name: str, total: int) -> Iterator[bytes]:
    """Yield the chunks, and show how much of ``total`` bytes is done."""
    if not _wanted():
        yield from chunks
        return
    from rich.progress import DownloadColumn

    bar = _bar(DownloadColumn(binary_units=True))
    with _only_one(bar):
        task = bar.add_task(f"reading {one_line(name, _NAME)}", total=total)
        done = 0
        for chunk in chunks:
            yield chunk
            done += len(chunk)
            # A compressed file unpacks to more bytes than it has; how many is unknown.
            bar.update(task, completed=done, total=total if done <= total else done)


@contextmanager
def of_steps(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many of all steps are done, if the work takes long."""
    wanted = _wanted()
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if wanted and time.monotonic() - said > _PATIENCE:
            said = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{what}: {done} of {total}")
            sys.stderr.flush()

    try:
        yield report
    finally:
        if wanted:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def of_items(items: Collection[T], what: str) -> Iterator[T]:
    """Yield the items and show how many are done, if it takes long."""
    with of_steps(what) as report:
        for done, item in enumerate(items):
            report(done, len(items))
            yield item


@contextmanager
def while_waiting(what: str) -> Iterator[None]:
    """Return what is being waited for, once that takes a while."""
    if not _wanted():
        yield
        return

    def show() -> None:
        sys.stderr.write(f"\r\x1b[K{one_line(what, 70)} …")
        sys.stderr.flush()

    timer = threading.Timer(_PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

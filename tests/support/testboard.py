# SPDX-License-Identifier: Apache-2.0
"""What a run of the tests shows while it runs.

On a terminal each step that runs has a line that moves; elsewhere there is a line each half minute.
A failure is shown when it happens, with the command that repeats it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Self

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["Board", "Tally"]

LINE_SECONDS = 30.0
"""The time between two lines when there is no terminal."""
MOST_OF_A_FAILURE = 6000
"""Characters: its end says what failed. All of it is in the step's log."""


class Tally:
    """What a step has come to so far."""

    def __init__(self, name: str, board: Board) -> None:
        self.name = name
        self.total: int | None = None
        """Tests there will be; None: not known."""
        self.passed = 0
        self.failed = 0
        self.left_out: Counter[str] = Counter()
        """Tests that were skipped, by their reason."""
        self.seconds = 0.0
        self._board = board

    @property
    def skipped(self) -> int:
        return self.left_out.total()

    @property
    def done(self) -> int:
        return self.passed + self.failed + self.skipped

    def expect(self, tests: int) -> None:
        """Say how many tests there will be, beside those that were said before."""
        self.total = (self.total or 0) + tests
        self._board.moved(self)

    def passes(self) -> None:
        self.passed += 1
        self._board.moved(self)

    def skips(self, reason: str) -> None:
        self.left_out[reason] += 1
        self._board.moved(self)

    def fails(self, test: str, said: str, repeat: str) -> None:
        """Count a test that failed and show it at once."""
        self.failed += 1
        self._board.failed(test, said, repeat)
        self._board.moved(self)

    def counts(self) -> str:
        """Return what has ended, of how many."""
        of = "" if self.total is None else f"/{max(self.total, self.done)}"
        failed = f", {self.failed} failed" if self.failed else ""
        skipped = f", {self.skipped} left out" if self.skipped else ""
        return f"{self.done}{of}{failed}{skipped}"


class Board:
    """All steps of a run, for the person who waits for it; used by several threads."""

    def __init__(self) -> None:
        self.tallies: list[Tally] = []
        self.failures: list[str] = []
        """Each test that failed, with the command that repeats it."""
        self._lock = threading.RLock()
        self._running: dict[Tally, tuple[TaskID, float]] = {}
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        columns = (
            TextColumn("  {task.description:28}", markup=False),
            TextColumn("{task.fields[counts]:36}", markup=False),
            TimeElapsedColumn(),
        )
        self._moving = Progress(*columns, console=self._console, transient=True)
        self._over = threading.Event()
        self._speaker = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._moving.start()
        else:
            self._speaker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._moving.stop()

    def _speak(self) -> None:
        while not self._over.wait(LINE_SECONDS):
            with self._lock:
                parts = [f"{tally.name} {tally.counts()}" for tally in self._running]
            self.say(f"{time.strftime('%H:%M:%S')}  {'; '.join(parts) or 'waiting'}")

    def say(self, text: str) -> None:
        """Print a line, or some, above what moves."""
        with self._lock:
            self._console.print(text)
            sys.stdout.flush()

    def begin(self, name: str) -> Tally:
        """Show a step that begins."""
        tally = Tally(name, self)
        with self._lock:
            task = self._moving.add_task(name, total=None, counts="")
            self._running[tally] = task, time.monotonic()
        return tally

    def moved(self, tally: Tally) -> None:
        with self._lock:
            task, _ = self._running[tally]
            self._moving.update(task, counts=tally.counts())

    def failed(self, test: str, said: str, repeat: str) -> None:
        with self._lock:
            self.failures.append(f"{test}\n    {repeat}")
            self.say(f"\nFAILED {test}\n{said.strip()[-MOST_OF_A_FAILURE:]}\n  again: {repeat}\n")

    def end(self, tally: Tally) -> None:
        """Show what a step has come to."""
        with self._lock:
            task, began = self._running.pop(tally)
            self._moving.remove_task(task)
            tally.seconds = time.monotonic() - began
            self.tallies.append(tally)
            mark = "failed" if tally.failed else "ok" if tally.passed else "nothing"
            self.say(f"{mark:7} {tally.name:28} {tally.counts():36} {tally.seconds:6.1f} s")

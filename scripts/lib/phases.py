# SPDX-License-Identifier: Apache-2.0
"""Show what a long work does: its phases with their times, and the line that says why it failed.

All that programs print goes into a log. A line in it that begins with ``phase: `` begins a phase,
wherever it comes from; one that begins with ``notice: `` is shown.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

__all__ = ["NOTE", "PHASE", "Phases", "failing_line"]

PHASE = "phase: "
NOTE = "notice: "
LINE_SECONDS = 30.0
"""The time between two lines when there is no terminal."""
MOVE_SECONDS = 0.5
WIDTH = 79
# pip's own errors of this kind stand before and behind what they are about.
COMPLAINT = re.compile(
    r"^E: |\berror: (?!subprocess-|metadata-)|No space left on device", re.IGNORECASE
)
LONGEST = 300


def failing_line(said: str) -> str:
    """Return the line that says why programs failed: the first complaint, or what was said last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = [line for line in lines if COMPLAINT.search(line)]
    # Ninja's line is followed by the command, and that by what it said.
    found += [lines[i + 2] for i, line in enumerate(lines[:-2]) if line.startswith("FAILED: ")]
    return (found or lines[-1:] or ["it does not say why"])[0][:LONGEST]


class Phases:
    """Follow a log, from its end as it is now, until the block ends."""

    def __init__(self, log: Path, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._moves = out.isatty()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._file = log.open("a+", errors="replace")
        self._name = ""
        self._last = ""
        self._since = self._shown = time.monotonic()

    def __enter__(self) -> Phases:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._file.close()

    def _follow(self) -> None:
        rest = ""
        while True:
            ended = self._ended.wait(MOVE_SECONDS)
            *lines, rest = (rest + self._file.read()).split("\n")
            for line in lines:
                self._take(line)
            if ended:
                self._begin("")
                return
            self._move()

    def _take(self, line: str) -> None:
        if line.startswith(PHASE):
            self._begin(line.removeprefix(PHASE))
        elif line.startswith(NOTE):
            self._print(line)
        elif line.strip():
            self._last = line.strip()

    def _begin(self, name: str) -> None:
        now = time.monotonic()
        if self._name:
            self._print(f"{now - self._since:5.0f} s  {self._name}")
        self._name, self._last, self._since, self._shown = name, "", now, now

    def _print(self, line: str) -> None:
        clear = "\r\x1b[K" if self._moves else ""
        print(f"{clear}{line}", file=self._out, flush=True)

    def _move(self) -> None:
        now = time.monotonic()
        if not self._name or (not self._moves and now - self._shown < LINE_SECONDS):
            return
        self._shown = now
        line = f"{now - self._since:5.0f} s  {self._name} … "
        if self._moves:
            line = f"\r\x1b[K{line}{self._last}"[: WIDTH + len("\r\x1b[K")]
        print(line, end="" if self._moves else "\n", file=self._out, flush=True)

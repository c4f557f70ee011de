# SPDX-License-Identifier: Apache-2.0
"""Stacks written by hand, as bug reports have them: ``Thread 1 (what)``, then a function a line.

What stands behind a name, with two blanks or a tab before it, is the author's remark. Without a
thread's head no list of words is taken for a stack.
"""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import LineReader, line_format, number
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_HEAD = re.compile(r"\s{0,8}Thread ?#?(\d{1,7})\b(?:\s*[(:-]\s*(.{0,200}?)[):]*)?\s*$", re.I)
_NAME = re.compile(
    r"\s{0,8}(?:[-*>]\s+)?(~?[A-Za-z_][\w$]*(?:::~?[\w$<>]+)*(?:::operator\(\))?(?:\([^()]*\))?)"
    r"(?:\s{2,}\S.*|\t.*)?\s*$"
)
_SNIFF = re.compile(r"^\s{0,8}Thread ?#?\d{1,7}\b", re.M | re.I)
_LEAST = 3
"""Frames of a list that is worth reading."""


class _Reader(LineReader):
    backend = "outline"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.number: int | None = None
        self.title = ""
        self.frames: list[Frame] = []

    def line(self, line: str) -> bool:
        if match := _HEAD.match(line):
            self.end_thread()
            self.number, self.title = number(match.group(1)), (match.group(2) or "").strip()
            return True
        if self.number is None:
            return False
        if not line.strip():
            if self.frames:
                self.end_thread()
            return True
        match = _NAME.match(line)
        if match is None:
            self.end_thread()
            return False
        self.frames.append(self.dump.frame(match.group(1)))
        return True

    def end_thread(self) -> None:
        plain = [frame for frame in self.frames if frame.symbol and _says(frame.symbol)]
        if len(self.frames) >= _LEAST and 2 * len(plain) > len(self.frames):
            self.dump.thread(self.frames, tid=self.number or 0, name=self.title[:64])
        self.number, self.title, self.frames = None, "", []

    def end(self) -> None:
        self.end_thread()
        super().end()


def _says(name: str) -> bool:
    """Return whether a name is one of a program, not a word of a language."""
    return "_" in name or "::" in name or "(" in name


def sniff(text: str) -> bool:
    """Return whether a thread's head is in the text."""
    return "hread" in text and _SNIFF.search(text) is not None


FORMAT = line_format(sniff, _Reader)

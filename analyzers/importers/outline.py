# SPDX-License-Identifier: Apache-2.0
"""Stacks written by hand, as bug reports have them: ``Thread 1 (what)``, then a function a line.

What stands behind a name, with two blanks or a tab before it, is the author's remark. Without a
thread's head a list of names is a stack only where functions are in it that all servers have.
"""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import (
    MAX_LINE,
    Dump,
    Format,
    Loaded,
    number,
    squeeze,
)
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
_LIST = re.compile(
    r"(?:^[^\S\n]{0,8}(?:[-*>] )?[A-Za-z_~][^\s,;]{2,400}(?:[^\S\n][^\n]*)?\n){2}", re.M
)
# One of these is in a stack of any server, and in no list of variables, tables or options.
_CERTAIN = re.compile(
    r"(?:__)?(?:lll_lock_wait|futex_\w+|pthread_(?:mutex_lock|cond_\w*wait\w*|rwlock_\w+lock)"
    r"|(?:GI_)?_{0,3}(?:poll|nanosleep|clone3?|fsync|fdatasync|epoll_wait|io_getevents))(?:@.*)?"
    r"|start_thread|native_mutex_lock|os_event_wait_low|sync_array_wait_event|do_command"
    r"|dispatch_command|mysql_execute_command|do_handle_one_connection|handle_(?:one_)?connection"
    r"|mysql_parse|PostgresMain|ServerLoop|LWLockAcquire|ProcSleep|open_table|.*::wait_low"
)


def load(text: str, name: str) -> Loaded:
    """Read all stacks as one capture."""
    reader = _Reader(name)
    for line in text.split("\n"):
        reader.line(squeeze(line[:MAX_LINE]).removesuffix("\r"))
    reader.end_thread()
    if not reader.dump.threads:
        return [], text
    return [reader.dump.capture()], "\n".join(reader.rest)


class _Reader:
    def __init__(self, name: str) -> None:
        self.dump = Dump("outline", name)
        self.rest: list[str] = []
        self.lines: list[str] = []
        """Those of the stack that has begun."""
        self.number: int | None = None
        self.title = ""
        self.frames: list[Frame] = []

    def line(self, line: str) -> None:
        if match := _HEAD.match(line):
            self.end_thread()
            self.number, self.title = number(match.group(1)), (match.group(2) or "").strip()
            self.lines.append(line)
        elif not line.strip():
            if self.frames:
                self.end_thread()
            (self.rest if self.number is None else self.lines).append(line)
        elif match := _NAME.match(line):
            self.lines.append(line)
            self.frames.append(self.dump.frame(match.group(1)))
        else:
            self.end_thread()
            self.rest.append(line)

    def end_thread(self) -> None:
        names = [frame.symbol for frame in self.frames if frame.symbol]
        says = 2 * sum(map(_says, names)) > len(self.frames) >= _LEAST
        # Without a head, not every list of names is a stack.
        if says and (self.number is not None or any(map(_CERTAIN.fullmatch, names))):
            self.dump.thread(self.frames, tid=self.number or 0, name=self.title[:64])
        else:
            self.rest += self.lines
        self.number, self.title, self.frames, self.lines = None, "", [], []


def _says(name: str) -> bool:
    """Return whether a name is one of a program, not a word of a language."""
    return "_" in name or "::" in name or "(" in name


def sniff(text: str) -> bool:
    """Return whether a thread's head or a list of words is in the text."""
    return ("hread" in text and _SNIFF.search(text) is not None) or _LIST.search(text) is not None


FORMAT = Format("outline", sniff, load)

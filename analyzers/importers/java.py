# SPDX-License-Identifier: Apache-2.0
"""Thread dumps as the JVM prints them (jstack, ``kill -3``, jcmd), and others in their shape.

Monitors that one thread holds and another waits for become locks with an owner.
"""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import Dump, LineReader, line_format, number
from stallscope.model.capture import Frame, LockKind

__all__ = ["FORMAT"]

_START = re.compile(r"(?:.{0,80}\s)?Full thread dump ")
_PID = re.compile(r"(\d{1,9}):\s*$")
_THREAD = re.compile(
    r'"(?P<name>(?:[^"\\]|\\.){0,400})"'
    r"(?P<rest>(?: \[\d+\])?(?: #\d+|.*\bprio=|.*\bnid=|.*\btid=).*)$"
)
_NID = re.compile(r"\bnid=(0x[0-9a-f]{1,8}|\d{1,9})")
_OS_ID = re.compile(r" #\d+ \[(\d{1,9})\]")
_STATE = re.compile(r"\s+java\.lang\.Thread\.State: ([A-Z_]+)(?: \((.{1,60})\))?")
_FRAME = re.compile(
    r"\s+at (?P<name>[^\s(]+)\((?:[\w.]+(?:@[^/()]{0,60})?/)?(?P<source>[^()]*)\)\s*$"
)
_LOCK = re.compile(
    r"\s+- (?P<how>locked|waiting to lock|waiting to re-lock in wait\(\)|waiting on"
    r"|parking to wait for\s+|waiting for monitor entry) *<0x(?P<at>[0-9a-f]{1,16})>"
    r"(?: \(an? (?P<what>[^)]{1,300})\))?"
)
_STATES = {"BLOCKED": "S", "WAITING": "S", "TIMED_WAITING": "S", "RUNNABLE": "?", "NEW": "?"}


class _Reader(LineReader):
    backend = "java"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.pid = 0
        self.inside = False
        self.owners: dict[int, int] = {}
        self.reset_thread()

    def reset_thread(self) -> None:
        self.title = ""
        self.tid = 0
        self.state = "?"
        self.activity: str | None = None
        self.frames: list[Frame] = []
        self.wanted: tuple[int, str | None] | None = None
        self.held: set[int] = set()
        self.in_thread = False

    def line(self, line: str) -> bool:
        if match := _THREAD.match(line):
            self.end_thread()
            nid = _NID.search(match["rest"])
            os_id = _OS_ID.match(match["rest"])
            text = nid.group(1) if nid else os_id.group(1) if os_id else ""
            self.tid = int(text, 16) if text.startswith("0x") else number(text)
            self.title = match["name"]
            self.in_thread = self.inside = True
            return True
        if _START.match(line):
            self.end()
            self.inside = True
            return True
        if match := _PID.match(line):
            self.pid = number(match.group(1))
            return False
        if not self.in_thread:
            return False
        if match := _FRAME.match(line):
            source = match["source"]
            known = ":" in source and not source.startswith("Unknown")
            self.frames.append(self.dump.frame(match["name"], source=source if known else None))
        elif match := _STATE.match(line):
            self.state = _STATES.get(match.group(1), "S")
            self.activity = match.group(1) + (f" ({match.group(2)})" if match.group(2) else "")
        elif match := _LOCK.match(line):
            at = int(match["at"], 16)
            if match["how"] == "locked":
                self.held.add(at)
            elif match["how"] != "waiting on" and self.wanted is None:
                self.wanted = (at, match["what"])
        elif not line.strip():
            self.end_thread()
        return True

    def end_thread(self) -> None:
        if self.in_thread:
            if self.wanted is not None:
                self.held.discard(self.wanted[0])
            lock = None
            if self.wanted is not None:
                at, what = self.wanted
                kind = LockKind.MUTEX if "BLOCKED" in (self.activity or "") else LockKind.UNKNOWN
                lock = self.dump.lock(at, kind, symbol=what)
            if "on object monitor" not in (self.activity or "") or "BLOCKED" in (
                self.activity or ""
            ):
                for at in self.held:
                    self.owners[at] = self.tid
            self.dump.thread(
                self.frames,
                tid=self.tid,
                name=self.title,
                state=self.state,
                activity=self.activity,
                lock=lock,
            )
        self.reset_thread()

    def end(self) -> None:
        self.end_thread()
        if any(thread.frames for thread in self.dump.threads):
            for at, tid in self.owners.items():
                if tid and self.dump.knows_lock(at):
                    self.dump.lock(at, LockKind.MUTEX, owner_tid=tid)
            self.dump.pid, self.dump.comm = self.pid, "java"
            super().end()
        self.dump = Dump(self.backend, self.name)
        self.owners = {}
        self.inside = False


def sniff(text: str) -> bool:
    """Return whether a thread's head and a frame of the JVM stand in the text."""
    return "\tat " in text or "Full thread dump " in text


FORMAT = line_format(sniff, _Reader)

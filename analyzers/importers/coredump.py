# SPDX-License-Identifier: Apache-2.0
"""Stacks that systemd-coredump writes to the journal and ``coredumpctl info`` shows."""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import LineReader, line_format, number
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_PROCESS = re.compile(r".*?Process (\d{1,9}) \((.{1,64}?)\) of user \d+ (?:dumped core|terminated)")
_PID = re.compile(r"\s*PID: (\d{1,9}) \((.{1,64})\)\s*$")
_THREAD = re.compile(r".*?Stack trace of thread (\d{1,9}):\s*$")
# Copied from a web page, the number and the address can have run together.
_FRAME = re.compile(
    r".*?#(\d{1,4}?)\s*0x([0-9a-f]{16}) (.+?) \((\S.*?)(?: \+ 0x([0-9a-f]{1,16}))?\)\s*$"
)


class _Reader(LineReader):
    backend = "systemd-coredump"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tid: int | None = None
        self.seen: set[int] = set()
        self.frames: list[Frame] = []
        self.lost = False

    def line(self, line: str) -> bool:
        if match := _PROCESS.match(line) or _PID.match(line):
            if self.dump.threads or self.frames:
                self.end()
            self.dump.pid, self.dump.comm = number(match.group(1)), match.group(2)
            return True
        if match := _THREAD.match(line):
            self.end_thread()
            tid = number(match.group(1))
            if tid in self.seen:
                self.end()
            self.seen.add(tid)
            self.tid = tid
            return True
        if self.tid is None:
            return False
        match = _FRAME.match(line)
        if match is None:
            if "#" in line and self.frames:
                self.lost = True
                return False
            if line.strip():
                self.end_thread()
                return False
            return True
        self.frames.append(
            self.dump.frame(
                match.group(3),
                module=match.group(4),
                pc=int(match.group(2), 16),
                offset=int(match.group(5), 16) if match.group(5) else None,
            )
        )
        return True

    def end_thread(self) -> None:
        if self.frames and self.tid is not None:
            unwind = "lost" if self.lost else "complete"
            self.dump.thread(self.frames, tid=self.tid, unwind=unwind)
        self.tid = None
        self.lost = False
        self.frames = []

    def end(self) -> None:
        self.end_thread()
        super().end()
        self.seen = set()


def sniff(text: str) -> bool:
    """Return whether a stack of systemd-coredump is in the text."""
    return "Stack trace of thread " in text


FORMAT = line_format(sniff, _Reader)

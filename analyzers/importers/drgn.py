# SPDX-License-Identifier: Apache-2.0
"""drgn's stack traces, and its pstack: the kernel's stack, a rule, then the user's."""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import LineReader, line_format, number
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_FRAME = re.compile(
    r"#(?P<number>\d{1,4})\s+(?:(?P<unknown>\?\?\?|0x[0-9a-f]{1,16})|(?P<name>\S.*?))"
    r"(?:\+0x(?P<offset>[0-9a-f]{1,16})/0x[0-9a-f]{1,16})?"
    r"(?: \((?P<source>[^()\s]+?:\d+)(?::\d+)?\))?\s*$"
)
_USER = re.compile(r"-+\s*userspace\s*-+")
_THREAD = re.compile(
    r"\s*\[?(?:Thread|TID|PID|pid|tid|thread)[ :=]+(\d{1,9})\b(?:.*?(?:COMM|comm|name)[ :=]+"
    r"[\"']?([^\"'\s\]]{1,64}))?"
)
_SNIFF = re.compile(
    r"^#\d{1,4} +\S.{0,2000}?(?:\([^()\s]+:\d+(?::\d+)?\)|\+0x[0-9a-f]+/0x[0-9a-f]+) *$", re.M
)


class _Reader(LineReader):
    backend = "drgn"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tid = 0
        self.title = ""
        self.kernel: list[Frame] = []
        self.frames: list[Frame] = []
        self.inside = False

    def line(self, line: str) -> bool:
        if line.startswith("#") and (match := _FRAME.match(line)):
            if match["number"] == "0" and self.frames:
                self.end_thread()
            self.inside = True
            offset = match["offset"]
            unknown = match["unknown"] or ""
            if unknown == "???":
                return True
            self.frames.append(
                self.dump.frame(
                    match["name"],
                    pc=int(unknown, 16) if unknown else None,
                    source=match["source"],
                    symbol_offset=int(offset, 16) if offset else None,
                )
            )
            return True
        if _USER.match(line):
            self.kernel, self.frames = self.frames, []
            return True
        if match := _THREAD.match(line):
            self.end_thread()
            self.tid = number(match.group(1))
            self.title = match.group(2) or ""
            return True
        if self.inside and line.strip():
            self.end_thread()
        return False

    def end_thread(self) -> None:
        if self.frames or self.kernel:
            kernel = [
                self.dump.frame(
                    frame.symbol,
                    pc=frame.pc,
                    source=frame.source,
                    symbol_offset=frame.symbol_offset,
                    kernel=True,
                )
                for frame in self.kernel
            ]
            self.dump.thread(self.frames, kernel_frames=kernel, tid=self.tid, name=self.title)
        self.frames, self.kernel = [], []
        self.tid, self.title = 0, ""
        self.inside = False

    def end(self) -> None:
        self.end_thread()
        super().end()


def sniff(text: str) -> bool:
    """Return whether a frame with its column, or its offset and size, is in the text."""
    return _SNIFF.search(text) is not None


FORMAT = line_format(sniff, _Reader)

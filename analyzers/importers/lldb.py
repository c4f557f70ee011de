# SPDX-License-Identifier: Apache-2.0
"""lldb's ``thread backtrace all`` and ``bt``."""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import LineReader, line_format, number
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_THREAD = re.compile(r"\s*(?:\* )?thread #(\d{1,7})(?:: tid = (0x[0-9a-f]{1,8}|\d{1,9}))?[,:]?(.*)")
_NAME = re.compile(r"name = '([^']{0,64})'")
_FRAME = re.compile(r"\s*(?:\* )?frame #(\d{1,5}): 0x([0-9a-f]{1,16}) ?(.*)$")
_PLACE = re.compile(
    r"(?P<module>[^`]{0,4096})`(?P<name>.+?)(?: \[(?:inlined|opt|artificial)\])*"
    r"(?: \+ (?P<offset>\d{1,9}))?(?: at (?P<source>\S[^()]{0,1024}?:\d+)(?::\d+)?)?"
    r"(?: \[(?:opt|inlined)\])?\s*$"
)
_ARGUMENTS = re.compile(r"\((?:\w+=|\s*\)).*$")
_PROCESS = re.compile(r"Process (\d{1,9}) stopped")


class _Reader(LineReader):
    backend = "lldb"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen: set[int] = set()
        self.inside = self.lost = False
        self.tid = 0
        self.title = ""
        self.frames: list[Frame] = []

    def line(self, line: str) -> bool:
        if match := _FRAME.match(line):
            at = number(match.group(1))
            if at == 0 and self.frames:
                self.end_thread()
            self.lost = self.lost or at != len(self.frames)
            self.frame(int(match.group(2), 16), match.group(3))
            self.inside = True
            return True
        if match := _PROCESS.match(line):
            self.end()
            self.dump.pid = number(match.group(1))
            return True
        if "thread #" in line and (match := _THREAD.match(line)):
            self.end_thread()
            index = int(match.group(1))
            if index in self.seen:
                self.end()
            self.seen.add(index)
            tid = match.group(2) or ""
            self.tid = int(tid, 16) if tid.startswith("0x") else number(tid)
            name = _NAME.search(match.group(3))
            self.title = name.group(1) if name else ""
            return True
        self.lost = self.lost or (self.inside and "frame #" in line)
        return False

    def frame(self, pc: int, text: str) -> None:
        place = _PLACE.match(text)
        if place is None:
            self.frames.append(self.dump.frame(None, module=text.strip("` ") or None, pc=pc))
            return
        name = place["name"]
        if "(" in name:  # values of arguments, not their types
            name = _ARGUMENTS.sub("", name)
        self.frames.append(
            self.dump.frame(
                name.removesuffix(" [inlined]").strip(),
                module=place["module"] or None,
                pc=pc,
                source=place["source"],
                symbol_offset=int(place["offset"]) if place["offset"] else None,
            )
        )

    def end_thread(self) -> None:
        if self.frames:
            unwind = "lost" if self.lost else "complete"
            self.dump.thread(self.frames, tid=self.tid, name=self.title, unwind=unwind)
        self.frames = []
        self.tid, self.title = 0, ""
        self.inside = self.lost = False

    def end(self) -> None:
        self.end_thread()
        super().end()
        self.seen = set()


def sniff(text: str) -> bool:
    """Return whether a frame of lldb is in the text."""
    return "frame #0: 0x" in text


FORMAT = line_format(sniff, _Reader)

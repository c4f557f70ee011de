# SPDX-License-Identifier: Apache-2.0
"""eu-stack of elfutils, of a process or a core, with any of ``-q -s -m -v -i -b -r -d -1``."""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import LineReader, line_format, number
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_PID = re.compile(r"PID (\d{1,9}) - (?:process|core)")
_TID = re.compile(r"TID (\d{1,9}):\s*$")
# Verbose output has "- 1" where the address is that of the call, blanks where it is exact.
_FRAME = re.compile(r"#(\d{1,4})\s+0x([0-9a-f]{1,16})(?: - 1(?= |$)|\s{4})?\s*(?! ?in )(.*)$")
_MODULE = re.compile(r"(.*?)\s*- (/.*|\[[\w.]+\]|linux-vdso\S*)$")
_SOURCE = re.compile(r"    (\S.*?:\d+)(?::\d+)?$")
_BUILD_ID = re.compile(r"    \[[0-9a-f]+\]@0x[0-9a-f]+\+0x([0-9a-f]{1,16})$")
_LIMIT = re.compile(r"eu-stack: tid \d+: shown max number of frames")
_FAILED = re.compile(r"eu-stack: dwfl_thread_getframes tid \d+")
_SNIFF = re.compile(r"^TID \d{1,9}:\s*$", re.M)


class _Reader(LineReader):
    backend = "eu-stack"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen: set[int] = set()
        self.tid = 0
        self.inside = False
        self.frames: list[Frame] = []
        self.unwind = "complete"

    def line(self, line: str) -> bool:
        if match := _PID.match(line):
            self.end()
            self.dump.pid = number(match.group(1))
            return True
        if match := _TID.match(line):
            self.end_thread()
            self.tid = number(match.group(1))
            if self.tid in self.seen:
                self.end()
            self.seen.add(self.tid)
            self.inside = True
            return True
        if not self.inside:
            return False
        if match := _FRAME.match(line):
            self.frame(int(match.group(2), 16), match.group(3))
        elif match := _SOURCE.match(line):
            self.add_to_last(source=match.group(1))
        elif match := _BUILD_ID.match(line):
            self.add_to_last(offset=int(match.group(1), 16))
        elif _LIMIT.match(line):
            self.unwind = "limit"
        elif _FAILED.match(line):
            self.unwind = "bad-cfi" if "CFI" in line or "DWARF" in line else "no-cfi"
        elif line.lstrip().startswith("#"):
            self.unwind = "lost"
            return False
        elif line.strip():
            self.end_thread()
            return False
        return True

    def frame(self, pc: int, text: str) -> None:
        match = _MODULE.match(text)
        symbol, module = (match.group(1), match.group(2)) if match else (text, None)
        self.frames.append(self.dump.frame(symbol.strip(), module=module, pc=pc))

    def add_to_last(self, *, source: str | None = None, offset: int | None = None) -> None:
        if self.frames:
            last = self.frames[-1]
            self.frames[-1] = self.dump.frame(
                last.symbol,
                module=last.module.path if last.module else None,
                pc=last.pc,
                source=source or last.source,
                offset=last.offset if offset is None else offset,
            )

    def end_thread(self) -> None:
        if self.frames:
            self.dump.thread(self.frames, tid=self.tid, unwind=self.unwind)
        elif self.inside:
            self.dump.note("no-frames", f"thread {self.tid} has no frames in {self.name}")
        self.frames = []
        self.unwind = "complete"
        self.inside = False

    def end(self) -> None:
        self.end_thread()
        super().end()
        self.seen = set()


def sniff(text: str) -> bool:
    """Return whether a thread's head is in the text."""
    return "TID " in text and _SNIFF.search(text) is not None


FORMAT = line_format(sniff, _Reader)

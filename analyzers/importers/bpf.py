# SPDX-License-Identifier: Apache-2.0
"""Stacks of bpftrace's maps (``@[ustack, comm]: 5``) and of bcc's profile, offcputime and similar.

The number is what the program counted or summed, so the threads here stand for samples, or for
microseconds. bcc's folded output (``-f``) is read by `folded`.
"""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import Dump, LineReader, line_format, number
from stallscope.model.capture import Frame

__all__ = ["BCC", "BPFTRACE"]

_MAX_COUNT = 2**31 - 1
_OPEN = re.compile(r"@(\w{0,64})\[(?:(.{0,400}?),?)?\s*$")
_CLOSE = re.compile(r"(?:,\s*)?(.{0,400}?)\]: (-?\d{1,18})\s*$")
_SYMBOL = re.compile(
    r"\s+(?:0x)?(?:(?P<pc>[0-9a-f]{6,16})(?: |$))?(?P<name>\S.*?)?"
    r"(?:\+(?P<offset>0x[0-9a-f]{1,16}|\d{1,9}))?(?: [(\[](?P<module>[^()\[\]]+)[)\]])?\s*$"
)
_ADDRESS = re.compile(r"0x[0-9a-f]{1,16}")
_BCC_END = re.compile(r"\s{2,}-\s+(?P<comm>\S.{0,63}?) \((?P<pid>\d{1,9})\)\s*$")
_BCC_COUNT = re.compile(r"\s+(\d{1,18})\s*$")
_BCC_RULE = re.compile(r"\s{2,}--\s*$")
_BCC_SNIFF = re.compile(
    r"^[^\S\n]{2,}-[^\S\n]+\S.{0,63}? \(\d{1,9}\)[ \r]*\n[^\S\n]+\d{1,18}[ \r]*$", re.M
)
_BPFTRACE_SNIFF = re.compile(r"^@\w{0,64}\[", re.M)


def _frame(dump: Dump, line: str, *, kernel: bool) -> Frame | None:
    match = _SYMBOL.match(line)
    if match is None or not (match["name"] or match["pc"]):
        return None
    name: str | None = match["name"]
    pc: str | None = match["pc"]
    if name is not None and name[:2] in ("b'", 'b"'):
        name = name[2:].rstrip("'\"")
    if name is not None and _ADDRESS.fullmatch(name):
        pc = name[2:]
        name = None
    offset = match["offset"] or ""
    return dump.frame(
        name,
        module=match["module"],
        pc=int(pc, 16) if pc else None,
        symbol_offset=int(offset, 16) if offset[:2] == "0x" else number(offset) or None,
        kernel=kernel,
    )


class _Maps(LineReader):
    """bpftrace: stacks among the keys of a map's entry, the kernel's before the user's."""

    backend = "bpftrace"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.open = False
        self.keys: list[str] = []
        self.stacks: list[list[str]] = []

    def line(self, line: str) -> bool:
        if match := _OPEN.match(line):
            self.open = True
            self.keys = [match.group(2)] if match.group(2) else []
            self.stacks = [[]]
            return True
        if not self.open:
            return False
        if line[:1] in (" ", "\t"):
            self.stacks[-1].append(line)
        elif match := _CLOSE.match(line):
            self.keys.append(match.group(1))
            self.end_stack(int(match.group(2)))
        elif line[:1] == ",":
            self.keys.append(line[1:])
            self.stacks.append([])
        elif line.strip():
            self.open = False
            return False
        return True

    def end_stack(self, count: int) -> None:
        self.open = False
        keys = [key.strip(" ,") for text in self.keys for key in text.split(",")]
        numbers = [key for key in keys if key.isdecimal()]
        words = [key for key in keys if key and not key.isdecimal()]
        stacks = [stack for stack in self.stacks if stack]
        if not stacks or count < 1:
            return
        kernel = [f for line in stacks[0] if (f := _frame(self.dump, line, kernel=True))]
        user = [f for line in stacks[-1] if (f := _frame(self.dump, line, kernel=False))]
        self.dump.thread(
            user,
            kernel_frames=kernel if len(stacks) > 1 else (),
            name=words[0] if words else "",
            tid=number(numbers[-1]) if numbers else 0,
            count=min(count, _MAX_COUNT),
        )


class _Bcc(LineReader):
    """bcc: frames, a dash with the program, the count; ``--`` ends the kernel's frames."""

    backend = "bcc"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lines: list[str] = []
        self.rule = 0
        self.owner: re.Match[str] | None = None

    def line(self, line: str) -> bool:
        if self.owner is not None:
            match = _BCC_COUNT.match(line)
            if match:
                self.end_stack(int(match.group(1)))
                return True
            self.clear()
        if match := _BCC_END.match(line):
            self.owner = match
        elif _BCC_RULE.match(line):
            self.rule = len(self.lines)
        elif line[:1] in (" ", "\t"):
            self.lines.append(line)
            if len(self.lines) > 4096:
                self.clear()
        else:
            self.clear()
            return not line.strip()
        return True

    def clear(self) -> None:
        self.lines, self.rule, self.owner = [], 0, None

    def end_stack(self, count: int) -> None:
        assert self.owner is not None
        kernel = [
            f for line in self.lines[: self.rule] if (f := _frame(self.dump, line, kernel=True))
        ]
        user = [
            f for line in self.lines[self.rule :] if (f := _frame(self.dump, line, kernel=False))
        ]
        if count and (user or kernel):
            pid = number(self.owner["pid"])
            self.dump.thread(
                user,
                kernel_frames=kernel,
                name=self.owner["comm"],
                tid=pid,
                count=min(count, _MAX_COUNT),
            )
        self.clear()


def _sniff_bpftrace(text: str) -> bool:
    return "@" in text and _BPFTRACE_SNIFF.search(text) is not None


def _sniff_bcc(text: str) -> bool:
    return _BCC_SNIFF.search(text) is not None


BPFTRACE = line_format(_sniff_bpftrace, _Maps)
BCC = line_format(_sniff_bcc, _Bcc)

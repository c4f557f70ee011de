# SPDX-License-Identifier: Apache-2.0
"""Files of heaptrack: what is still allocated at their end, by stack.

A line each, with numbers in hex: ``s`` a string, ``i`` an instruction with its module and frames,
``t`` a stack as an instruction and the stack of its callers, ``a`` a size and a stack, ``+`` and
``-`` an allocation and a release of such an ``a``. Strings, instructions and stacks are counted
from 1 on, ``a`` from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sized

import msgspec

from stallscope.base.errors import StallscopeError

__all__ = ["Heap", "is_heaptrack", "parse"]

MAX_STRINGS = 2_000_000
MAX_STRING_BYTES = 256 << 20
MAX_ITEMS = 10_000_000
"""Instructions, stacks, and kinds of allocations, of each."""
MAX_FRAMES = 1000
MAX_LINE = 1 << 20
_HEX = re.compile(r"[0-9a-f]{1,16}$")
_HEAD = re.compile(rb"v [0-9a-f]{1,8}(?: [0-9a-f]{1,4})?\r?\n")
_LATEST = 3
_SIZED = 3
"""The version from which strings have their length before them."""


class Heap(msgspec.Struct, frozen=True):
    """What a file says."""

    command: str
    stacks: tuple[tuple[int, int, tuple[str, ...]], ...]
    """(bytes, allocations that are not released, frames from the innermost); largest first."""
    peak_bytes: int
    seconds: float
    is_attached: bool
    """heaptrack was attached to a running process: what it had before is not known."""
    bad_lines: int


def is_heaptrack(head: bytes) -> bool:
    """Return whether data begins like such a file."""
    return _HEAD.match(head) is not None


def parse(chunks: Iterable[bytes], name: str) -> Heap:
    """Read a file, which is decompressed, in one pass. Raises: StallscopeError."""
    reader = _Reader(name)
    for line in _lines(chunks):
        reader.add(line)
    return reader.result()


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        yield from lines
        if len(rest) > MAX_LINE:
            rest = rest[:MAX_LINE]
    if rest:
        yield rest


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._version = 0
        self._strings: list[str] = []
        self._string_bytes = 0
        self._instructions: list[tuple[int, int, tuple[int, ...]]] = []
        self._traces: list[tuple[int, int]] = []
        self._sizes: list[int] = []
        self._of: list[int] = []
        self._counts: list[int] = []
        self._held = 0
        self._peak = 0
        self._last = 0
        self._command = ""
        self._attached = False
        self._bad = 0

    def add(self, line: bytes) -> None:
        kind = line[:1]
        if kind in (b"+", b"-"):
            self._change(line, 1 if kind == b"+" else -1)
            return
        text = line.decode("utf-8", "backslashreplace").rstrip("\r")
        if kind == b"s":
            self._string(text)
        elif kind == b"X":
            self._command = text[2:500]
        elif kind == b"A":
            self._attached = True
        elif kind in (b"v", b"i", b"t", b"a", b"c"):
            words = text[2:].split(" ") if len(text) <= MAX_LINE else []
            numbers = [int(word, 16) for word in words if _HEX.match(word)]
            if len(numbers) != len(words) or not numbers:
                self._bad += 1
            else:
                self._numbers(kind, numbers)
        elif kind == b"m":
            raise StallscopeError(
                f"{self._name}: a raw file of heaptrack: run heaptrack_interpret on it first"
            )
        elif kind not in (b"", b"#", b"R", b"I", b"S"):
            self._bad += 1

    def _string(self, text: str) -> None:
        text = text[2:]
        if self._version >= _SIZED:
            text = text.partition(" ")[2]
        self._string_bytes += len(text)
        if len(self._strings) >= MAX_STRINGS or self._string_bytes > MAX_STRING_BYTES:
            raise StallscopeError(f"{self._name}: more strings than are read")
        self._strings.append(text)

    def _numbers(self, kind: bytes, numbers: list[int]) -> None:
        if kind == b"v":
            self._version = numbers[1] if len(numbers) > 1 else 1
            if self._version > _LATEST:
                raise StallscopeError(
                    f"{self._name}: version {self._version} of heaptrack's format is not known"
                )
            if not self._version:
                raise StallscopeError(f"{self._name}: heaptrack's format before 1.0 is not read")
        elif kind == b"c":
            self._last = numbers[0]
        elif kind == b"i":
            self._room(self._instructions)
            module = numbers[1] if len(numbers) > 1 else 0
            # The function of each frame; its file and line are left out.
            self._instructions.append((numbers[0], module, tuple(numbers[2::3][:MAX_FRAMES])))
        elif len(numbers) < 2:
            self._bad += 1
        elif kind == b"t":
            self._room(self._traces)
            # Callers come first: a stack that names itself or a later one is none.
            parent = numbers[1] if numbers[1] <= len(self._traces) else 0
            self._bad += parent != numbers[1]
            self._traces.append((numbers[0], parent))
        else:
            self._room(self._sizes)
            self._sizes.append(min(numbers[0], 1 << 47))
            self._of.append(numbers[1])
            self._counts.append(0)

    def _room(self, items: Sized) -> None:
        if len(items) >= MAX_ITEMS:
            raise StallscopeError(f"{self._name}: more than {MAX_ITEMS} stacks: not read")

    def _change(self, line: bytes, by: int) -> None:
        try:
            index = int(line[2:], 16)
            if index < 0:
                raise IndexError(index)
            self._counts[index] += by
        except (ValueError, IndexError):
            self._bad += 1
            return
        self._held += by * self._sizes[index]
        self._peak = max(self._peak, self._held)

    def result(self) -> Heap:
        """Return the sums."""
        if not self._version:
            raise StallscopeError(f"{self._name}: not a file of heaptrack")
        sums: dict[int, tuple[int, int]] = {}
        for size, trace, count in zip(self._sizes, self._of, self._counts, strict=True):
            # More released than allocated: it was attached, or the file is damaged.
            if count > 0:
                before = sums.get(trace, (0, 0))
                sums[trace] = (before[0] + size * count, before[1] + count)
        found: dict[tuple[str, ...], tuple[int, int]] = {}
        for trace, (size, count) in sums.items():
            frames = self._frames(trace)
            before = found.get(frames, (0, 0))
            found[frames] = (before[0] + size, before[1] + count)
        stacks = [(size, count, frames) for frames, (size, count) in found.items()]
        stacks.sort(key=lambda stack: (-stack[0], stack[2]))
        return Heap(
            command=self._command,
            stacks=tuple(stacks),
            peak_bytes=self._peak,
            seconds=self._last / 1000,
            is_attached=self._attached,
            bad_lines=self._bad,
        )

    def _frames(self, trace: int) -> tuple[str, ...]:
        frames: list[str] = []
        while 0 < trace <= len(self._traces) and len(frames) < MAX_FRAMES:
            instruction, trace = self._traces[trace - 1]
            frames += self._names(instruction)
        return tuple(frames[:MAX_FRAMES])

    def _names(self, number: int) -> list[str]:
        if not 0 < number <= len(self._instructions):
            return ["??"]
        address, module, functions = self._instructions[number - 1]
        names = [self._text(function) for function in functions]
        if any(names):
            return [name for name in names if name]
        file = self._text(module).rsplit("/", 1)[-1]
        return [f"{file} {address:#x}" if file else f"{address:#x}"]

    def _text(self, number: int) -> str:
        return self._strings[number - 1] if 0 < number <= len(self._strings) else ""

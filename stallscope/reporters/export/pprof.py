# SPDX-License-Identifier: Apache-2.0
"""pprof's profile: proto/profile.proto of github.com/google/pprof, compressed by gzip."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator

from stallscope.base.text import clean
from stallscope.model.capture import Capture, Frame, Module
from stallscope.reporters.export.protobuf import bytes_field, int_field, packed_field
from stallscope.reporters.export.source import (
    Entry,
    Options,
    Row,
    lock_name,
    rows,
    source_line,
    tool,
)

__all__ = ["render"]

_GZIP = 31  # zlib's wbits for a gzip stream; its header has no time in it
_INT64_MAX = (1 << 63) - 1


def render(entries: Iterable[Entry], options: Options) -> Iterator[bytes]:
    """Return one profile of all captures: equal stacks of equal labels are one sample.

    Sample types: ``threads/count``; ``waited/nanoseconds`` where the source has it.
    """
    profile = _Profile(options)
    for entry in entries:
        profile.add(entry)
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    for message in profile.messages():
        packed = packer.compress(message)
        if packed:
            yield packed
    yield packer.flush()


class _Table:
    """Distinct messages of one kind, numbered from 1."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.messages: list[bytes] = []

    def number(self, key: Hashable, encode: Callable[[int], bytes]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers) + 1
            self.messages.append(encode(number))
        return number


class _Mappings:
    """The ELF files. pprof regards the first one as the program."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int | None, str | None], int] = {}
        self._modules: dict[int, Module] = {}
        self._unnamed: set[int] = set()
        self.programs: set[str] = set()

    def number(self, module: Module, *, named: bool) -> int:
        key = (module.path, module.start, module.build_id)
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._modules.setdefault(number, module)
        if not named:
            self._unnamed.add(number)
        return number

    def encoded(self, string: Callable[[str], int]) -> Iterator[bytes]:
        def order(item: tuple[int, Module]) -> tuple[bool, int]:
            return item[1].path not in self.programs, item[0]

        for number, module in sorted(self._modules.items(), key=order):
            yield b"".join(
                (
                    int_field(1, number),
                    int_field(2, module.start or 0),
                    int_field(3, module.end or 0),
                    int_field(5, string(clean(module.path))),
                    int_field(6, string(clean(module.build_id or ""))),
                    # Where a function has no name, pprof may look for it in the file itself.
                    int_field(7, number not in self._unnamed),
                )
            )


class _Profile:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._strings = {"": 0}
        self._mappings = _Mappings()
        self._functions = _Table()
        self._locations = _Table()
        self._samples: dict[tuple[bytes, bytes], list[int]] = {}
        """Stack and labels, encoded → threads, nanoseconds."""
        self._times: list[int] = []
        self._names: list[str] = []

    def add(self, entry: Entry) -> None:
        """Add the threads of a capture."""
        capture = entry.analysis.capture
        self._names.append(clean(entry.name))
        self._times += [] if capture.time_ns is None else [capture.time_ns]
        self._mappings.programs.update(process.exe for process in capture.processes if process.exe)
        stacks: dict[tuple[int, int], bytes] = {}
        for row in rows(entry, self._options):
            stack = stacks.get(row.key) if row.key else None
            if stack is None:
                stack = packed_field(1, self._stack(row))
                if row.key:
                    stacks[row.key] = stack
            sums = self._samples.setdefault((stack, self._labels(row, capture)), [0, 0])
            sums[0] += row.thread.count
            sums[1] += (row.thread.waited_ns or 0) * row.thread.count

    def messages(self) -> Iterator[bytes]:
        """Yield the fields of the profile; the strings come last, when all are known."""
        types = [("threads", "count")]
        if any(waited for _, waited in self._samples.values()):
            types.append(("waited", "nanoseconds"))
        for kind, unit in types:
            yield bytes_field(1, self._value_type(kind, unit))
        for (stack, labels), sums in self._samples.items():
            values = [min(value, _INT64_MAX) for value in sums[: len(types)]]
            yield bytes_field(2, stack + packed_field(2, values) + labels)
        for field, messages in (
            (3, self._mappings.encoded(self._string)),
            (4, self._locations.messages),
            (5, self._functions.messages),
        ):
            for message in messages:
                yield bytes_field(field, message)
        if self._times:
            yield int_field(9, min(self._times))
            yield int_field(10, max(self._times) - min(self._times))
        yield bytes_field(11, self._value_type("threads", "count"))
        yield int_field(12, 1)
        comments = [f"{clean(self._options.title)}, {tool()}", *self._names]
        yield packed_field(13, [self._string(comment) for comment in comments])
        yield int_field(14, self._string("threads"))
        for text in self._strings:
            yield bytes_field(6, text.encode())

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _value_type(self, kind: str, unit: str) -> bytes:
        return int_field(1, self._string(kind)) + int_field(2, self._string(unit))

    def _labels(self, row: Row, capture: Capture) -> bytes:
        thread = row.thread
        lock = thread.lock
        labels = {
            "thread": clean(thread.name),
            "tid": str(thread.tid) if thread.tid else "",
            "state": row.state,
            "lock": lock_name(capture.locks[lock]) if lock is not None else "",
            "digest": clean(thread.digest or ""),
        }
        return b"".join(
            bytes_field(3, int_field(1, self._string(key)) + int_field(2, self._string(text)))
            for key, text in labels.items()
            if text
        )

    def _stack(self, row: Row) -> Iterator[int]:
        frames = row.frames or (None,) * len(row.names)
        for number, (name, frame) in enumerate(zip(row.names, frames, strict=True)):
            yield self._location(name, frame, leaf=number in (0, row.kernel))

    def _location(self, name: str, frame: Frame | None, *, leaf: bool) -> int:
        if frame is None:
            return self._line(0, 0, self._function(name, name, ""), 0)
        source, line = source_line(frame)
        function = self._function(name, clean(frame.linkage or frame.symbol or name), source)
        mapping = 0
        if frame.module is not None:
            mapping = self._mappings.number(frame.module, named=frame.symbol is not None)
        # A caller's address is its return address; the call is before it.
        address = max(0, (frame.pc or 0) - (not leaf))
        return self._line(mapping, address, function, line)

    def _line(self, mapping: int, address: int, function: int, line: int) -> int:
        where = int_field(2, mapping) + int_field(3, address)
        what = bytes_field(4, int_field(1, function) + int_field(2, line))
        key = (mapping, address, function, line)
        return self._locations.number(key, lambda number: int_field(1, number) + where + what)

    def _function(self, name: str, system: str, source: str) -> int:
        key = (self._string(name), self._string(system), self._string(source))

        def encode(number: int) -> bytes:
            return b"".join(int_field(i, value) for i, value in enumerate((number, *key), 1))

        return self._functions.number(key, encode)

# SPDX-License-Identifier: Apache-2.0
"""Read and write capture files, as docs/capture-format.md describes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.model import captureformat, capturewriter, sessionsfile
from stallscope.model.capture import (
    SCHEMAS,
    Address,
    BurstEnd,
    Capture,
    Frame,
    Index,
    Lock,
    Module,
    Note,
    Process,
    Release,
    Sample,
    Stack,
    Thread,
    Trigger,
)
from stallscope.model.captureformat import StackRecord

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

__all__ = [
    "MAX_BYTES",
    "MAX_LINE",
    "MAX_RECORDS",
    "CaptureFileError",
    "decompress",
    "dumps",
    "encode",
    "is_capture",
    "loads",
    "read",
    "read_bytes",
    "write",
]

MAX_BYTES = 512 << 20
"""The most bytes of a file, and of its decompressed content. 20,000 threads of 40 frames take 20
MB."""
MAX_LINE = 4 << 20
MAX_RECORDS = 2_000_000
MAX_STACK = 4096
"""The most frames of one stack."""
MAX_STACKED = 50_000_000
"""The most frames of all stacks of a capture."""
MAX_BURST_THREADS = 20_000_000
"""The most threads of all captures of a burst, each counted in each of them."""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_LOG_MAX = 27  # 128 MiB: the limit of `zstd -d` itself


class CaptureFileError(StallscopeError):
    """The file is not a capture that this version reads."""


class _Header(msgspec.Struct):
    """The fields of a record that the reader needs, and that are not part of the model."""

    type: str
    id: Index | None = None
    threads: Index | None = None
    same_name: Index | None = None


_T = TypeVar("_T")
_header_decoder = msgspec.json.Decoder(_Header)
# What msgspec raises on text that is not JSON, not UTF-8, not of the type, or nested too deeply.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError)
_SCHEMA_AT_START = re.compile(rb'\s*\{[^\n]{0,4096}?"schema"\s*:\s*"stallscope\.capture/')


def is_capture(data: bytes) -> bool:
    """Return whether decompressed data begins like a capture of any version."""
    return _SCHEMA_AT_START.match(data) is not None


def read(path: Path) -> Capture:
    """Read a capture file, compressed or not, and its file of sessions."""
    return sessionsfile.add_from_file(loads(read_bytes(path), str(path)), path)


def read_bytes(path: Path) -> bytes:
    """Read a file of any kind, decompressed where it is zstd; ``-`` is standard input."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise StallscopeError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise StallscopeError(f"{path}: larger than {MAX_BYTES >> 20} MiB; it is not read")
    return decompress(data, str(path))


def decompress(data: bytes, name: str) -> bytes:
    """Return the data itself, or the content of its one zstd frame."""
    if not data.startswith(ZSTD_MAGIC):
        return data
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX}
    decompressor = zstd.ZstdDecompressor(options=options)
    try:
        plain = decompressor.decompress(data, max_length=MAX_BYTES + 1)
    except zstd.ZstdError as error:
        raise CaptureFileError(f"{name}: damaged zstd data: {error}") from error
    if len(plain) > MAX_BYTES:
        raise CaptureFileError(
            f"{name}: decompresses to more than {MAX_BYTES >> 20} MiB; it is not read"
        )
    if not decompressor.eof:
        raise CaptureFileError(f"{name}: torn: the zstd frame is cut off; take the capture again")
    if decompressor.unused_data:
        raise CaptureFileError(f"{name}: more data after the zstd frame; a capture is one frame")
    return plain


def loads(data: bytes, name: str) -> Capture:
    """Return the Capture of the text of a capture file; ``name`` is for messages and ``path``."""
    return _File(decompress(data, name), name).read()


def write(capture: Capture, path: Path, *, force: bool = False) -> None:
    """Write the capture atomically with mode 0600; a name ending in ``.zst`` is compressed."""
    chunks: Iterable[bytes] = capturewriter.lines(capture)
    if path.suffix == ".zst":
        chunks = [encode(capture, path)]
    atomicfile.write(path, chunks, force=force)


def encode(capture: Capture, path: Path) -> bytes:
    """Return the content of a file of this name: the text, compressed where the name says so."""
    data = b"".join(capturewriter.lines(capture))
    return zstd.compress(data) if path.suffix == ".zst" else data


def dumps(capture: Capture) -> bytes:
    """Return the text of a capture file."""
    return b"".join(capturewriter.lines(capture))


class _File:
    """The captures of one file: one, or those of a burst."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._lines = _split(data)
        self._number = 0

    def read(self) -> Capture:
        if not self._data.strip():
            raise CaptureFileError(f"{self._name}: empty; take the capture again")
        first = moment = self._capture(self._next() or b"", None)
        later: list[Capture] = []
        threads = len(first.threads)
        while (line := self._next()) is not None:
            if (end := self._burst_end(line)) is not None:
                if self._next() is not None:
                    raise self._error("records after the end of the burst")
                return msgspec.structs.replace(first, later=tuple(later), burst=end)
            moment = self._capture(line, moment)
            later.append(moment)
            threads += len(moment.threads)
            if threads > MAX_BURST_THREADS:
                raise self._error(f"a burst of more than {MAX_BURST_THREADS} threads in all")
        if not later:
            return first
        raise self._torn(f"burst: its end is missing after {1 + len(later)} captures", "it")

    def _next(self) -> bytes | None:
        """Return the next line that is not empty, None after the last one."""
        for line in self._lines:
            self._number += 1
            if self._number > MAX_RECORDS:
                raise self._error(f"more than {MAX_RECORDS} records")
            if len(line) > MAX_LINE:
                if self._number == 1:
                    raise CaptureFileError(f"{self._name}: not a capture of stallscope")
                raise self._error(f"a line of more than {MAX_LINE >> 20} MiB")
            if line.strip():
                return line
        return None

    def _capture(self, head: bytes, before: Capture | None) -> Capture:
        reader = _Reader(self._name, before)
        reader.line = self._number
        reader.begin(head)
        while reader.end is None:
            line = self._next()
            reader.line = self._number
            if line is None:
                raise self._torn(f"capture: no end record after {self._number} lines")
            try:
                reader.record(line)
            except _DECODE_ERRORS as error:
                if self._is_cut(line):
                    raise self._torn(f"capture: line {self._number} is cut off") from None
                raise self._error(str(error)) from None
        return reader.finish()

    def _burst_end(self, line: bytes) -> BurstEnd | None:
        try:
            if _header_decoder.decode(line).type != "burst":
                return None
            return msgspec.json.decode(line, type=BurstEnd)
        except _DECODE_ERRORS as error:
            raise self._error(str(error)) from None

    def _is_cut(self, line: bytes) -> bool:
        return not self._data.endswith(b"\n") and self._data.endswith(line)

    def _torn(self, what: str, it: str = "the capture") -> CaptureFileError:
        return CaptureFileError(
            f"{self._name}: torn {what};"
            f" its writer was killed or the disk was full; take {it} again"
        )

    def _error(self, message: str) -> CaptureFileError:
        return _damaged(self._name, self._number, message)


class _Reader:
    """Decodes the records of one capture, from first to last, and resolves their references.

    ``before``: the capture before in the same file.
    """

    def __init__(self, name: str, before: Capture | None) -> None:
        self.name = name
        self.line = 0
        self.head: msgspec.Struct | None = None
        self.before: Capture | None = before
        self.processes: list[Process] = []
        self.modules: list[Module] = []
        self.frames: list[Frame] = []
        self.stacks: list[tuple[Frame, ...]] = []
        self.locks: list[Lock] = []
        self.threads: list[Thread] = []
        self.releases: list[Release] = []
        self.samples: list[Sample] = []
        self.notes: list[Note] = []
        self.trigger: Trigger | None = None
        self.end: msgspec.Struct | None = None
        self.counted: int | None = None
        self.stacked = 0
        self.decoders: dict[str, msgspec.json.Decoder[Any]] = {
            kind: msgspec.json.Decoder(record, dec_hook=self._resolve)
            for kind, record in captureformat.RECORDS.items()
        }
        self.tables: dict[str, list[Any]] = {
            "process": self.processes,
            "module": self.modules,
            "frame": self.frames,
            "stack": self.stacks,
            "lock": self.locks,
        }

    def begin(self, line: bytes) -> None:
        """Take the first record."""
        first = self.before is None
        self.head = self._head(line, first=first)
        moment: int = self.head.moment  # type: ignore[attr-defined]
        if not moment:
            self.before = None  # a whole capture, also within a burst
        elif self.before is None or moment != self.before.moment + 1:
            raise self._error(f"capture {moment} of a burst without the one before")
        if self.before is not None:
            self.processes += self.before.processes

    def _head(self, line: bytes, *, first: bool) -> msgspec.Struct:
        foreign = (
            CaptureFileError(f"{self.name}: not a capture of stallscope")
            if first
            else self._error("records after the end; a file holds one capture, or one burst")
        )
        try:
            fields = msgspec.json.decode(line)
        except _DECODE_ERRORS:
            raise foreign from None
        if not isinstance(fields, dict) or not isinstance(fields.get("schema"), str):
            raise foreign
        schema: str = fields["schema"]
        if fields.get("type") != "capture" or not schema.startswith("stallscope.capture/"):
            raise foreign
        if schema not in SCHEMAS:
            raise CaptureFileError(
                f"{self.name}: schema {schema[:60]} cannot be read, only {' and '.join(SCHEMAS)};"
                " use the version of stallscope that wrote it, or a newer one"
            )
        try:
            return msgspec.convert(fields, captureformat.RECORDS["capture"])
        except _DECODE_ERRORS as error:
            raise self._error(str(error)) from None

    def record(self, line: bytes) -> None:
        """Take one record; a record of an unknown type is skipped."""
        header = _header_decoder.decode(line)
        kind = header.type
        if kind not in self.decoders:
            return
        if kind == "capture":
            raise self._error("a second capture record before the end of the first")
        if kind == "burst":
            raise self._error("the end of a burst before the end of its capture")
        record = self.decoders[kind].decode(line)
        table = self.tables.get(kind)
        if table is not None and header.id != len(table):
            raise self._error(f"id {header.id} where {len(table)} follows")
        match record:
            case Thread():
                self._check(record, record.lock)
                self.threads.append(record)
            case Frame():
                self._check(record)
                self.frames.append(self._named(record, header.same_name))
            case StackRecord():
                self.stacks.append(self._stack(record))
            case Process():
                self.processes.append(record)
            case Module():
                self._check(record)
                self.modules.append(record)
            case Lock():
                self._check(record)
                self.locks.append(record)
            case Release():
                self._check(record, record.lock)
                self.releases.append(record)
            case Sample():
                self._check(record)
                self.samples.append(record)
            case Note():
                self.notes.append(record)
            case Trigger():
                if self.trigger is not None:
                    raise self._error("a second trigger record; a capture has one reason")
                self.trigger = record
            case _:
                self.counted = header.threads
                self.end = record

    def _check(
        self, record: Thread | Frame | Module | Lock | Release | Sample, lock: int | None = None
    ) -> None:
        """Check that the process and lock exist to which the model refers by number."""
        if record.process is not None and record.process >= len(self.processes):
            raise self._error(f"refers to process {record.process}, which does not exist")
        if lock is not None and lock >= len(self.locks):
            raise self._error(f"refers to lock {lock}, which does not exist")

    def _named(self, frame: Frame, same_name: int | None) -> Frame:
        if same_name is None:
            return frame
        same = _at(self.frames, same_name, "frame")
        return msgspec.structs.replace(frame, symbol=same.symbol, linkage=same.linkage)

    def _stack(self, record: StackRecord) -> tuple[Frame, ...]:
        self.stacked += len(record.frames)
        if len(record.frames) > MAX_STACK or self.stacked > MAX_STACKED:
            raise self._error(f"more than {MAX_STACK} frames, or {MAX_STACKED} in all stacks")
        return tuple(_at(self.frames, frame, "frame") for frame in record.frames)

    def _resolve(self, declared: type, value: object) -> object:
        """Convert a value of a file to that of the model. Raises: ValueError."""
        if declared is Address:
            return captureformat.address(value)
        if declared is Stack:
            return () if value is None else _at(self.stacks, value, "stack")
        return None if value is None else _at(self.modules, value, "module")

    def finish(self) -> Capture:
        """Return the capture, when all of its records were taken."""
        if not self.processes:
            raise self._error("no process record")
        assert self.head is not None
        assert self.end is not None
        ended: tuple[int, ...] = self.end.ended  # type: ignore[attr-defined]
        threads, locks, modules = tuple(self.threads), tuple(self.locks), tuple(self.modules)
        if self.before is not None:
            locks, threads = _following(self.before, self.locks, self.threads, frozenset(ended))
            modules = tuple(dict.fromkeys((*self.before.modules, *modules)))
        if self.counted != len(threads):
            raise self._error(
                f"the end record counts {self.counted} threads, the file holds {len(threads)}"
            )
        return Capture(
            **msgspec.structs.asdict(self.head),
            **msgspec.structs.asdict(self.end),
            processes=tuple(self.processes),
            threads=threads,
            locks=locks,
            releases=tuple(self.releases),
            samples=tuple(self.samples),
            modules=modules,
            notes=tuple(self.notes),
            trigger=self.trigger,
            path=self.name,
        )

    def _error(self, message: str) -> CaptureFileError:
        return _damaged(self.name, self.line, message)


def _damaged(name: str, line: int, message: str) -> CaptureFileError:
    return CaptureFileError(f"{name}: line {line}: damaged capture: {message}")


def _following(
    before: Capture, locks: list[Lock], changed: list[Thread], ended: frozenset[int]
) -> tuple[tuple[Lock, ...], tuple[Thread, ...]]:
    """Return the locks and threads of a later capture of a burst.

    A lock keeps its index through the burst; a thread that did not run is the same object.
    """
    table = list(before.locks)
    known = {(lock.process, lock.address, lock.kind): i for i, lock in enumerate(table)}
    numbers = []
    for lock in locks:
        index = known.setdefault((lock.process, lock.address, lock.kind), len(table))
        if index == len(table):
            table.append(lock)
        table[index] = lock
        numbers.append(index)
    threads = {
        (thread.process, thread.tid): thread for thread in before.threads if thread.tid not in ended
    }
    count = len(threads)
    for thread in changed:
        if thread.lock is not None:
            thread = msgspec.structs.replace(thread, lock=numbers[thread.lock])
        threads[thread.process, thread.tid] = thread
    if len(threads) == count:  # their order is that of the capture before
        return tuple(table), tuple(threads.values())
    return tuple(table), tuple(threads[key] for key in sorted(threads))


def _at(records: list[_T], index: object, what: str) -> _T:
    """Return an earlier record by its id. Raises: ValueError."""
    if type(index) is not int or index < 0:
        raise ValueError(f"Expected the id of a {what}")
    if index >= len(records):
        raise ValueError(f"refers to {what} {index}, which does not exist")
    return records[index]


def _split(data: bytes) -> Iterable[bytes]:
    """Yield the lines one by one: a list of them would double the memory."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            end = len(data)
        yield data[start:end]
        start = end + 1

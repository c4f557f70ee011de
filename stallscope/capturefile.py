# SPDX-License-Identifier: Apache-2.0
"""Read and write capture files, as docs/capture-format.md describes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stallscope import capturewriter
from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.capturerecords import (
    RECORDS,
    CaptureRecord,
    EndRecord,
    FrameRecord,
    LockRecord,
    ModuleRecord,
    NoteRecord,
    ProcessRecord,
    ReleaseRecord,
    StackRecord,
    ThreadRecord,
    TriggerRecord,
)
from stallscope.model import (
    SCHEMA,
    Capture,
    Frame,
    Lock,
    LockKind,
    Module,
    Note,
    Process,
    Release,
    Syscall,
    Thread,
    Trigger,
)

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
"""Bytes of a file, and of what it decompresses to. 20,000 threads of 40 frames take 20 MB."""
MAX_LINE = 4 << 20
MAX_RECORDS = 2_000_000
MAX_STACK = 4096
"""Frames of one stack."""
MAX_STACKED = 50_000_000
"""Frames of all stacks."""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_LOG_MAX = 27  # 128 MiB: what `zstd -d` itself accepts without being asked for more


class CaptureFileError(StallscopeError):
    """The file is not a capture that this version reads."""


class _Type(msgspec.Struct):
    type: str


_T = TypeVar("_T")
_TYPE_DECODER = msgspec.json.Decoder(_Type)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(record) for name, record in RECORDS.items()
}
# What msgspec raises on text that is not JSON, not UTF-8, not of the type, or nested too deeply.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
_SCHEMA_AT_START = re.compile(rb'\s*\{[^\n]{0,4096}?"schema"\s*:\s*"stallscope\.capture/')


def is_capture(data: bytes) -> bool:
    """Tell whether decompressed data claims to be a capture, of any version."""
    return _SCHEMA_AT_START.match(data) is not None


def read(path: Path) -> Capture:
    """Read a capture file, compressed or not."""
    return loads(read_bytes(path), str(path))


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
    """Return the data itself, or what its one zstd frame holds."""
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
    """Make the Capture from the text of a capture file; ``name`` is for messages and ``path``."""
    return _Reader(name).read(decompress(data, name))


def write(capture: Capture, path: Path, *, force: bool = False) -> None:
    """Write the capture atomically with mode 0600; a name ending in ``.zst`` is compressed."""
    chunks: Iterable[bytes] = capturewriter.lines(capture)
    if path.suffix == ".zst":
        chunks = [encode(capture, path)]
    atomicfile.write(path, chunks, force=force)


def encode(capture: Capture, path: Path) -> bytes:
    """Return what a file of this name holds."""
    data = b"".join(capturewriter.lines(capture))
    return zstd.compress(data) if path.suffix == ".zst" else data


def dumps(capture: Capture) -> bytes:
    """Return the text of a capture file."""
    return b"".join(capturewriter.lines(capture))


class _Reader:
    """Resolve the records of one file, front to back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line = 0
        self.processes: list[Process] = []
        self.modules: list[Module] = []
        self.frames: list[Frame] = []
        self.stacks: list[tuple[Frame, ...]] = []
        self.locks: list[Lock] = []
        self.threads: list[Thread] = []
        self.releases: list[Release] = []
        self.notes: list[Note] = []
        self.trigger: Trigger | None = None
        self.stacked = 0

    def read(self, data: bytes) -> Capture:
        if not data.strip():
            raise CaptureFileError(f"{self.name}: empty; take the capture again")
        lines = iter(_split(data))
        head = self._head(next(lines))
        end: EndRecord | None = None
        for line in lines:
            self.line += 1
            if self.line > MAX_RECORDS:
                raise self._error(f"more than {MAX_RECORDS} records")
            if len(line) > MAX_LINE:
                raise self._error(f"a line of more than {MAX_LINE >> 20} MiB")
            if not line.strip():
                continue
            if end is not None:
                raise self._error("records after the end; a file holds one capture")
            end = self._record(line, last=self._is_cut(data, line))
        if end is None:
            raise CaptureFileError(
                f"{self.name}: torn capture: no end record after {self.line} lines;"
                " its writer was killed or the disk was full; take the capture again"
            )
        return self._finish(head, end)

    def _is_cut(self, data: bytes, line: bytes) -> bool:
        return not data.endswith(b"\n") and data.endswith(line)

    def _head(self, line: bytes) -> CaptureRecord:
        self.line = 1
        foreign = CaptureFileError(f"{self.name}: not a capture of stallscope")
        if len(line) > MAX_LINE:
            raise foreign
        try:
            fields = msgspec.json.decode(line)
        except _DECODE_ERRORS:
            raise foreign from None
        if not isinstance(fields, dict) or not isinstance(fields.get("schema"), str):
            raise foreign
        schema: str = fields["schema"]
        if fields.get("type") != "capture" or not schema.startswith("stallscope.capture/"):
            raise foreign
        if schema != SCHEMA:
            raise CaptureFileError(
                f"{self.name}: schema {schema[:60]} cannot be read, only {SCHEMA};"
                " use the version of stallscope that wrote it, or a newer one"
            )
        try:
            return msgspec.convert(fields, CaptureRecord)
        except _DECODE_ERRORS as error:
            raise self._error(str(error)) from None

    def _record(self, line: bytes, *, last: bool) -> EndRecord | None:
        """Take one record in; return it where it is the end record."""
        try:
            kind = _TYPE_DECODER.decode(line).type
            decoder = _DECODERS.get(kind)
            if decoder is None:
                if kind == "capture":
                    raise self._error("a second capture record; a file holds one capture")
                return None
            record = decoder.decode(line)
        except _DECODE_ERRORS as error:
            if last:
                raise CaptureFileError(
                    f"{self.name}: torn capture: line {self.line} is cut off;"
                    " its writer was killed or the disk was full; take the capture again"
                ) from None
            raise self._error(str(error)) from None
        if kind == "end":
            assert isinstance(record, EndRecord)
            return record
        getattr(self, f"_{kind}")(record)
        return None

    def _process(self, record: ProcessRecord) -> None:
        self._check_id(record.id, self.processes)
        fields = msgspec.structs.asdict(record)
        del fields["id"]
        fields["cmdline"] = tuple(record.cmdline)
        self.processes.append(Process(**fields))

    def _module(self, record: ModuleRecord) -> None:
        self._check_id(record.id, self.modules)
        self._at(self.processes, record.process, "process")
        fields = msgspec.structs.asdict(record)
        del fields["id"]
        for name in ("start", "end", "bias"):
            fields[name] = _number(fields[name])
        self.modules.append(Module(**fields))

    def _frame(self, record: FrameRecord) -> None:
        self._check_id(record.id, self.frames)
        if record.process is not None:
            self._at(self.processes, record.process, "process")
        module = record.module
        self.frames.append(
            Frame(
                symbol=record.symbol,
                module=None if module is None else self._at(self.modules, module, "module"),
                pc=_number(record.pc),
                offset=_number(record.offset),
                symbol_offset=record.symbol_offset,
                linkage=record.linkage,
                kernel=record.kernel,
                process=record.process,
                source=record.source,
            )
        )

    def _stack(self, record: StackRecord) -> None:
        self._check_id(record.id, self.stacks)
        self.stacked += len(record.frames)
        if len(record.frames) > MAX_STACK or self.stacked > MAX_STACKED:
            raise self._error(f"more than {MAX_STACK} frames, or {MAX_STACKED} in all stacks")
        self.stacks.append(tuple(self._at(self.frames, frame, "frame") for frame in record.frames))

    def _lock(self, record: LockRecord) -> None:
        self._check_id(record.id, self.locks)
        self._at(self.processes, record.process, "process")
        fields = msgspec.structs.asdict(record)
        del fields["id"]
        fields["address"] = int(record.address, 16)
        fields["futex"] = _number(record.futex)
        known = record.kind in LockKind.__members__.values()
        fields["kind"] = LockKind(record.kind) if known else LockKind.UNKNOWN
        self.locks.append(Lock(**fields))

    def _thread(self, record: ThreadRecord) -> None:
        self._at(self.processes, record.process, "process")
        if record.lock is not None:
            self._at(self.locks, record.lock, "lock")
        fields = msgspec.structs.asdict(record)
        for name, target in (("stack", "frames"), ("kernel_stack", "kernel_frames")):
            index = fields.pop(name)
            fields[target] = () if index is None else self._at(self.stacks, index, "stack")
        call = record.syscall
        if call is not None:
            args = tuple(int(arg, 16) for arg in call.args)
            fields["syscall"] = Syscall(nr=call.nr, name=call.name, args=args)
        self.threads.append(Thread(**fields))

    def _release(self, record: ReleaseRecord) -> None:
        self._at(self.processes, record.process, "process")
        if record.lock is not None:
            self._at(self.locks, record.lock, "lock")
        fields = msgspec.structs.asdict(record)
        index = fields.pop("stack")
        fields["frames"] = () if index is None else self._at(self.stacks, index, "stack")
        self.releases.append(Release(**fields))

    def _note(self, record: NoteRecord) -> None:
        self.notes.append(Note(record.code, record.message))

    def _trigger(self, record: TriggerRecord) -> None:
        if self.trigger is not None:
            raise self._error("a second trigger record; a capture has one reason")
        fields = msgspec.structs.asdict(record)
        fields["address"] = _number(record.address)
        self.trigger = Trigger(**fields)

    def _finish(self, head: CaptureRecord, end: EndRecord) -> Capture:
        if end.threads != len(self.threads):
            raise self._error(
                f"the end record counts {end.threads} threads, the file holds {len(self.threads)}"
            )
        if not self.processes:
            raise self._error("no process record")
        return Capture(
            backend=head.backend,
            processes=tuple(self.processes),
            threads=tuple(self.threads),
            locks=tuple(self.locks),
            releases=tuple(self.releases),
            modules=tuple(self.modules),
            notes=tuple(self.notes),
            time_ns=head.time_ns,
            host=head.host,
            tool=head.tool,
            backend_reason=head.backend_reason,
            snapshot_ns=head.snapshot_ns,
            elapsed_ns=end.elapsed_ns,
            stopped_ns=end.stopped_ns,
            phases=end.phases,
            trigger=self.trigger,
            path=self.name,
        )

    def _check_id(self, identity: int, records: list[Any]) -> None:
        if identity != len(records):
            raise self._error(f"id {identity} where {len(records)} follows")

    def _at(self, records: list[_T], index: int, what: str) -> _T:
        if index >= len(records):
            raise self._error(f"refers to {what} {index}, which is not there")
        return records[index]

    def _error(self, message: str) -> CaptureFileError:
        return CaptureFileError(f"{self.name}: line {self.line}: damaged capture: {message}")


def _split(data: bytes) -> Iterable[bytes]:
    """Yield the lines one by one: a list of them would double the memory."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            end = len(data)
        yield data[start:end]
        start = end + 1


def _number(value: str | None) -> int | None:
    return None if value is None else int(value, 16)

# SPDX-License-Identifier: Apache-2.0
"""Files that users name: open and decompress them by their content, with limits of size."""

from __future__ import annotations

import bz2
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from stallscope.base.errors import StallscopeError

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

__all__ = ["MAX_BYTES", "MAX_RATIO", "chunks", "is_core", "unpacked"]

MAX_BYTES = 4 << 30
"""The most bytes of a file, and of its decompressed content."""
MAX_RATIO = 1000
"""The largest ratio of compression: stacks repeat themselves, but more than this is an attack."""
_RATIO_FROM = 128 << 20
_CHUNK = 1 << 20
_WINDOW_LOG_MAX = 27
_MEMORY_LIMIT = 256 << 20


class _Decompressor(Protocol):
    """The part of bz2's, lzma's and zstd's decompressors that is used here."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's object with the methods of the others."""

    def __init__(self) -> None:
        self._object = zlib.decompressobj(wbits=31)
        self._tail = b""

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def needs_input(self) -> bool:
        return not self._tail

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        out = self._object.decompress(self._tail + data, max(0, max_length))
        self._tail = self._object.unconsumed_tail
        return out


def _zstd() -> _Decompressor:
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    return zstd.ZstdDecompressor(options=options)


_KINDS: tuple[tuple[bytes, str, Callable[[], _Decompressor]], ...] = (
    (b"\x1f\x8b", "gzip", _Gzip),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\0", "xz", lambda: lzma.LZMADecompressor(memlimit=_MEMORY_LIMIT)),
    (b"\x28\xb5\x2f\xfd", "zstd", _zstd),
)
_DAMAGE = (zlib.error, OSError, lzma.LZMAError, zstd.ZstdError, EOFError)


def is_core(head: bytes) -> bool:
    """Return whether data begins like an ELF core file."""
    return head[:4] == b"\x7fELF" and len(head) > 17 and head[16:18] in (b"\x04\0", b"\0\x04")


def chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of the file, decompressed where it is gzip, bzip2, xz or zstd.

    ``-`` is standard input. Raises: StallscopeError where the file cannot be read, is damaged or
    too large.
    """
    name = str(path)
    try:
        with sys.stdin.buffer if name == "-" else path.open("rb") as file:
            yield from _limited(_plain(file, name), name)
    except OSError as error:
        raise StallscopeError(f"cannot read {name}: {error.strerror or error}") from error


def unpacked(data: bytes, name: str) -> Iterator[bytes]:
    """Yield the content of a file that is in memory. Raises: as `chunks`."""
    return _limited(_plain(io.BytesIO(data), name), name)


def _limited(data: Iterator[bytes], name: str) -> Iterator[bytes]:
    size = 0
    for chunk in data:
        size += len(chunk)
        if size > MAX_BYTES:
            raise StallscopeError(f"{name}: larger than {MAX_BYTES >> 30} GiB: split it")
        yield chunk


def _plain(file: BinaryIO, name: str) -> Iterator[bytes]:
    head = file.read(_CHUNK)
    for magic, kind, make in _KINDS:
        if head.startswith(magic):
            yield from _unpack(_Packed(file, head), magic, kind, make, name)
            return
    while head:
        yield head
        head = file.read(_CHUNK)


class _Packed:
    """The compressed bytes, counted."""

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        self._file = file
        self._head = head
        self.size = 0

    def read(self) -> bytes:
        data, self._head = self._head or self._file.read(_CHUNK), b""
        self.size += len(data)
        return data


def _unpack(
    packed: _Packed, magic: bytes, kind: str, make: Callable[[], _Decompressor], name: str
) -> Iterator[bytes]:
    """Yield the content of the compressed streams; bytes after the last one are ignored."""
    unpacked = 0
    data = packed.read()
    while data.startswith(magic):
        stream = make()
        while not stream.eof:
            if stream.needs_input and not data:
                data = packed.read()
                if not data:
                    raise StallscopeError(f"{name}: torn: the {kind} data is cut off")
            try:
                out = stream.decompress(data, _CHUNK)
            except _DAMAGE as error:
                raise StallscopeError(f"{name}: damaged {kind} data: {error}") from None
            data = b""
            unpacked += len(out)
            if unpacked > _RATIO_FROM and unpacked > packed.size * MAX_RATIO:
                raise StallscopeError(
                    f"{name}: unpacks to more than {MAX_RATIO} times its size; it is not read"
                )
            if out:
                yield out
        data = stream.unused_data
        while data and len(data) < len(magic):
            more = packed.read()
            if not more:
                break
            data += more

# SPDX-License-Identifier: Apache-2.0
"""Importers: make Captures from the bytes of a file; the content decides about the format, not the
name.

A file can hold several dumps, of several formats. Each importer takes the lines of its format and
leaves the others to the next one, so the order of `FORMATS` decides where two could read a line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from stallscope.analyzers.importers import (
    bpf,
    coredump,
    crash,
    drgn,
    eustack,
    folded,
    gdb,
    gdb_scan,
    innodb,
    java,
    lldb,
    outline,
    perf,
    pmp,
    processlist,
    pyspy,
)
from stallscope.analyzers.importers.dump import Format
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model import capturefile
from stallscope.model.capture import Capture

__all__ = ["FORMATS", "MAX_REST", "PIECE", "Pieces", "UnknownFormat", "load", "read"]

MAX_REST = 512 << 20
"""The most characters of text that is not gdb's: other formats are read whole."""
PIECE = 8 << 20
"""Bytes that are scanned at a time; each piece parses its frames again."""
MAX_LINE = 1 << 20
"""The most bytes of a line; the rest is not about a stack."""

_ARCHIVES = (b"\x7fELF", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")
_PROBE = 1 << 16
"""Bytes at the start of a damaged text, of which one in a hundred may be NUL."""

Pieces = Callable[[Callable[[bytes], gdb_scan.Scan], Iterable[bytes]], Iterable[gdb_scan.Scan]]
"""How pieces are scanned: `map`, or one that uses more processes."""

FORMATS: tuple[Format, ...] = (
    pyspy.JSON_FORMAT,
    java.FORMAT,
    pyspy.FORMAT,
    lldb.FORMAT,
    eustack.FORMAT,
    coredump.FORMAT,
    crash.FORMAT,
    innodb.FORMAT,
    processlist.FORMAT,
    perf.FORMAT,
    bpf.BPFTRACE,
    bpf.BCC,
    drgn.FORMAT,
    pmp.FORMAT,
    folded.FORMAT,
    outline.FORMAT,
)


class UnknownFormat(StallscopeError):
    """The file has no stack dump of a known format."""


def load(data: bytes, name: str) -> list[Capture]:
    """Read every dump in ``data``; ``name`` is the file's, for messages.

    Raises: UnknownFormat, and the error of the format that was recognized.
    """
    return list(read([capturefile.decompress(data, name)], name))


def read(chunks: Iterable[bytes], name: str, *, pieces: Pieces = map) -> Iterator[Capture]:
    """Read every dump in decompressed data, in bounded memory where it is text of gdb.

    ``pieces`` may scan several pieces at once; they must come back in order.
    Raises: as `load`.
    """
    source = iter(chunks)
    head = b""
    for chunk in source:
        head = head + chunk if head else chunk.removeprefix(b"\xef\xbb\xbf")
        if len(head) >= _PROBE:
            break
    if not head.strip() and len(head) < _PROBE:
        raise UnknownFormat(f"{name}: the file is empty")
    if capturefile.is_capture(head):
        data = bytearray(head)
        for chunk in source:
            data += chunk
            if len(data) > capturefile.MAX_BYTES:
                limit = capturefile.MAX_BYTES >> 20
                raise StallscopeError(f"{name}: a capture of more than {limit} MiB; it is not read")
        yield capturefile.loads(bytes(data), name)
        return
    _check_text(head, name)

    reader = gdb.Reader(name)
    rest: list[str] = []
    size = found = 0
    for piece in pieces(_scan, _cut(itertools.chain([head], source))):
        for capture in reader.add(piece):
            found += 1
            yield capture
        rest.append(piece.rest)
        size += len(piece.rest)
        if size > MAX_REST:
            raise StallscopeError(f"{name}: more than {MAX_REST >> 20} MiB of text: split it")
    for capture in reader.finish():
        found += 1
        yield capture
    for capture in _others("\n".join(rest), name):
        found += 1
        yield capture
    if not found:
        raise _unknown("\n".join(rest), name)


def _check_text(head: bytes, name: str) -> None:
    if head.startswith(_ARCHIVES):
        raise UnknownFormat(f"{name}: not a stack dump (an ELF file or an archive): unpack it")
    probe = head[:_PROBE]
    if probe.count(b"\0") > len(probe) // 100:
        raise UnknownFormat(f"{name}: not a stack dump (a binary file)")


def _others(text: str, name: str) -> Iterator[Capture]:
    if not text or text.isspace():
        return
    for known in FORMATS:
        if known.sniff(text):
            captures, text = known.load(text, name)
            yield from captures


def _unknown(text: str, name: str) -> UnknownFormat:
    """Return what was tried, and the first line that matches no format."""
    tried = ", ".join(("gdb", *(known.name for known in FORMATS)))
    line = next((line for line in text.split("\n") if line.strip()), "")
    return UnknownFormat(
        f"{name}: no stack dump in it; tried stallscope, {tried};"
        f' the first line is "{one_line(line, 60)}"'
    )


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut data into pieces, before a thread where that can be; an endless line is shortened."""
    held: list[bytes] = []
    size = 0
    endless = False
    for chunk in chunks:
        if endless:
            at = chunk.find(b"\n")
            if at < 0:
                continue
            chunk, endless = chunk[at:], False
        held.append(chunk)
        size += len(chunk)
        if size < PIECE:
            continue
        data = b"".join(held)
        start = 0
        while len(data) - start >= PIECE:
            end = gdb_scan.boundary(data, start, start + PIECE)
            if end > start:
                yield data[start:end]
                start = end
                continue
            yield data[start : start + min(MAX_LINE, PIECE)]
            start = data.find(b"\n", start)
            endless = start < 0
            if endless:
                start = len(data)
        held = [data[start:]]
        size = len(held[0])
    yield b"".join(held)


def _scan(data: bytes) -> gdb_scan.Scan:
    return gdb_scan.scan(_text(data))


def _text(data: bytes) -> str:
    """Decode UTF-8, else Latin-1: every byte stays visible, none is an error."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")

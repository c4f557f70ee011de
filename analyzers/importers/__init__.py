# SPDX-License-Identifier: Apache-2.0
"""Importers: make Captures from the bytes of a file; the content decides about the format, not the
name.

A file can hold several dumps, of several formats. Each importer takes the lines of its format and
leaves the others to the next one, so the order of `FORMATS` decides where two could read a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from stallscope.analyzers.importers import (
    bpf,
    coredump,
    crash,
    damage,
    drgn,
    encoding,
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
    shapes,
)
from stallscope.analyzers.importers.dump import Format
from stallscope.base import inputfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Note
from stallscope.model.reading import LINES_LOST, Reading

__all__ = ["FORMATS", "MAX_REST", "PIECE", "Piece", "Pieces", "UnknownFormat", "load", "read"]

MAX_REST = 512 << 20
"""The most characters of text that is not gdb's: other formats are read whole."""
PIECE = 8 << 20
"""Bytes that are scanned at a time; each piece parses its frames again."""
MAX_LINE = 1 << 20
"""The most bytes of a line; the rest is not about a stack."""

MAX_HELD = 64
"""Dumps of one file that wait for what is found out about its last lines."""

_ARCHIVES = (b"\x7fELF", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")
_PROBE = encoding.PROBE


class Piece(NamedTuple):
    """One piece of a file, of which gdb's dumps were read."""

    scan: gdb_scan.Scan
    lines: int
    heads: int
    repaired: tuple[str, ...]
    """Damages of its text that were undone."""


Pieces = Callable[[Callable[[bytes], Piece], Iterable[bytes]], Iterable[Piece]]
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
    return list(read(inputfile.unpacked(data, name), name))


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
    if head.startswith(_ARCHIVES):
        raise UnknownFormat(f"{name}: not a stack dump (an ELF file or an archive): unpack it")
    if encoding.is_noise(head):
        raise UnknownFormat(
            f"{name}: not a stack dump (random, compressed or encrypted data): unpack it"
        )
    plain, repaired = encoding.plain(head, source)
    reader = gdb.Reader(name)
    account = _Account(repaired)
    held: list[Capture] = []
    found = False
    for piece in pieces(_scan, _cut(plain)):
        account.add(piece)
        if account.size > MAX_REST:
            raise StallscopeError(f"{name}: more than {MAX_REST >> 20} MiB of text: split it")
        held += reader.add(piece.scan)
        if len(held) > MAX_HELD:
            # What other formats make of the other lines is not known yet.
            yield from account.reported(held, None)
            held, found = [], True
    held += reader.finish()
    rest = "\n".join(account.rest)
    others, after = _others(rest, name)
    held += others
    if not held and not found:
        if encoding.is_binary(head) and encoding.NAME in repaired:
            raise UnknownFormat(f"{name}: not a stack dump (a binary file)")
        raise _unknown(rest, name)
    yield from account.reported(held, after)


class _Account:
    """Counts what became of the lines of a file."""

    def __init__(self, repaired: Iterable[str]) -> None:
        self.repaired = dict.fromkeys(repaired)
        self.rest: list[str] = []
        self.size = 0
        self.lines = 0
        self.heads = 0

    def add(self, piece: Piece) -> None:
        self.rest.append(piece.scan.rest)
        self.size += len(piece.scan.rest)
        self.lines += piece.lines
        self.repaired.update(dict.fromkeys(piece.repaired))
        self.heads += piece.heads

    def reported(self, captures: Iterable[Capture], after: str | None) -> Iterator[Capture]:
        """Yield the captures with the account; ``after``: what no format has read, if known."""
        reading = self.reading(after)
        for capture in captures:
            notes = capture.notes
            if reading.unreadable:
                lines = (
                    "1 line looks"
                    if reading.unreadable == 1
                    else f"{reading.unreadable} lines look"
                )
                message = (
                    f"{lines} like a part of a stack and cannot be read; the first: {reading.first}"
                )
                notes = (*notes, Note(LINES_LOST, message))
            yield msgspec.structs.replace(capture, reading=reading, notes=notes)

    def reading(self, after: str | None) -> Reading:
        rest = "\n".join(self.rest)
        unread = shapes.left(after or "")
        between = shapes.number_of_lines(rest)
        prose = unread.lines - unread.unreadable if after is not None else between
        heads = self.heads
        if after is not None and len(after) < len(rest):
            heads += shapes.heads(rest) - shapes.heads(after)
        lines = max(self.lines, prose + unread.unreadable + heads)
        return Reading(
            lines=lines,
            frames=lines - heads - prose - unread.unreadable,
            heads=heads,
            prose=prose,
            unreadable=unread.unreadable,
            repaired=tuple(self.repaired),
            first=unread.first,
        )


def _others(text: str, name: str) -> tuple[list[Capture], str]:
    """Return the dumps of other formats than gdb's, and what none of them has read."""
    found: list[Capture] = []
    if not text or text.isspace():
        return found, text
    for known in FORMATS:
        if known.sniff(text):
            captures, text = known.load(text, name)
            found += captures
    return found, text


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


def _scan(data: bytes) -> Piece:
    text, repaired = damage.repaired(_text(data))
    found = gdb_scan.scan(text)
    lines = shapes.number_of_lines(text)
    return Piece(found, lines, sum(map(_has_head, found.items)), tuple(repaired))


def _has_head(item: gdb_scan.RawThread | gdb_scan.DumpStart) -> bool:
    return isinstance(item, gdb_scan.RawThread) and bool(item.tid or item.number)


def _text(data: bytes) -> str:
    """Decode UTF-8, else Latin-1: every byte stays visible, none is an error."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")

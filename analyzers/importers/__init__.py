# SPDX-License-Identifier: Apache-2.0
"""Importers: bytes of a file in, Captures out; the format is found by content, never by name."""

from __future__ import annotations

from collections.abc import Callable

from stallscope import capturefile
from stallscope.analyzers.importers import gdb
from stallscope.errors import StallscopeError
from stallscope.model import Capture

__all__ = ["MAX_BYTES", "UnknownFormat", "load"]

MAX_BYTES = 1 << 30

_ARCHIVES = (b"\x7fELF", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")
_PROBE = 1 << 16
"""Bytes at the start of which one in a hundred may be NUL in a text that was torn."""


class UnknownFormat(StallscopeError):
    """Nothing in the file is a stack dump that any importer knows."""


_FORMATS: tuple[tuple[Callable[[str], bool], Callable[[str, str], list[Capture]]], ...] = (
    (gdb.sniff, gdb.load),
)


def _text(data: bytes) -> str:
    """Decode UTF-8, else Latin-1: every byte stays visible, none is an error."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def load(data: bytes, name: str) -> list[Capture]:
    """Read every stack dump in ``data``; ``name`` is the file's, for messages.

    Raises: UnknownFormat, and the error of the format that was recognized.
    """
    data = capturefile.decompress(data, name)
    if len(data) > MAX_BYTES:
        raise StallscopeError(f"{name}: {len(data)} bytes, the limit is {MAX_BYTES}: split it")
    if not data.strip():
        raise UnknownFormat(f"{name}: the file is empty")
    if capturefile.is_capture(data):
        return [capturefile.loads(data, name)]
    if data.startswith(_ARCHIVES):
        raise UnknownFormat(f"{name}: not a stack dump (an ELF file or an archive): unpack it")
    head = data[:_PROBE]
    if head.count(b"\0") > len(head) // 100:
        raise UnknownFormat(f"{name}: not a stack dump (a binary file)")
    text = _text(data)
    for sniff, read in _FORMATS:
        if sniff(text):
            return read(text, name)
    raise UnknownFormat(f"{name}: no stack dump in it; known are captures and gdb's backtraces")

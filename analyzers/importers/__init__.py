# SPDX-License-Identifier: Apache-2.0
"""Importers: bytes of a file in, Captures out; the format is found by content, never by name."""

from __future__ import annotations

from collections.abc import Callable

from stallscope.analyzers.importers import gdb
from stallscope.errors import StallscopeError
from stallscope.model import Capture

__all__ = ["MAX_BYTES", "UnknownFormat", "load"]

MAX_BYTES = 1 << 30

_PROBE = 1 << 20
"""Bytes at the start, and lines found in them, by which a format is known."""


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
    if len(data) > MAX_BYTES:
        raise StallscopeError(f"{name}: {len(data)} bytes, the limit is {MAX_BYTES}: split it")
    if not data.strip():
        raise UnknownFormat(f"{name}: the file is empty")
    if _is_capture(data):
        from stallscope import capturefile

        return [capturefile.loads(data, name)]
    if data.startswith((b"\x7fELF", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")):
        raise UnknownFormat(f"{name}: not a stack dump (an ELF file or an archive): unpack it")
    if data[:65536].count(b"\0") > len(data[:65536]) // 100:
        raise UnknownFormat(f"{name}: not a stack dump (a binary file)")
    text = _text(data)
    for sniff, read in _FORMATS:
        if sniff(text):
            return read(text, name)
    raise UnknownFormat(f"{name}: no stack dump in it; known are captures and gdb's backtraces")


def _is_capture(data: bytes) -> bool:
    if data.startswith(b"\x28\xb5\x2f\xfd"):  # one zstd frame
        return True
    first = data.lstrip()[:_PROBE].split(b"\n", 1)[0]
    return first.startswith(b"{") and b'"stallscope.capture/' in first

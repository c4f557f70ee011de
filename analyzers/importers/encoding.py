# SPDX-License-Identifier: Apache-2.0
"""Files that are no UTF-8 with newlines, as a stream of bytes that are: UTF-16, lone CR, NUL."""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import Iterable, Iterator

__all__ = ["NAME", "PROBE", "is_binary", "is_noise", "plain"]

PROBE = 1 << 16
"""Bytes at the start by which the encoding is known."""
NAME = "binary data"
"""What the damage is called where a text is among other data."""
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_BINARY = 10
"""One control character in so many bytes makes a file binary."""
_LEAST_NOISE = 4096
_NOISE_BITS = 7.8
"""Of 8 for each byte: text has 4 to 5, programs and databases 6 to 7."""
_NULS = 100
"""And one NUL in so many."""
_CONTROLS = bytes(set(range(32)) - {9, 10, 12, 13, 27})
_TO_LINES = bytes.maketrans(_CONTROLS, b"\n" * len(_CONTROLS))
_SIGNS = (b"Thread ", b"#1 ", b"TID ", b"waited at", b"thread #", b"start_thread")


def plain(head: bytes, more: Iterable[bytes]) -> tuple[Iterator[bytes], list[str]]:
    """Return the content with newlines, and the names of the damages.

    ``head``: the start, at least `PROBE` bytes where there are so many.
    """
    chunks = _chained(head, more)
    coding = _coding(head)
    if coding is not None:
        return _decoded(chunks, coding), [coding.upper().replace("-LE", "LE").replace("-BE", "BE")]
    if is_binary(head):
        return _text_of(chunks), [NAME]
    if b"\n" not in head and head.count(b"\r") > 1:
        return (chunk.replace(b"\r", b"\n") for chunk in chunks), ["line ends"]
    return chunks, []


def is_binary(head: bytes) -> bool:
    """Return whether it has too many control characters for a text."""
    probe = head[:PROBE]
    controls = len(probe) - len(probe.translate(None, _CONTROLS))
    return controls > len(probe) // _BINARY or probe.count(b"\0") > len(probe) // _NULS


def is_noise(head: bytes) -> bool:
    """Return whether the start is random, compressed or encrypted: each byte is as frequent as each
    other. To search all of such a file takes long and finds stacks that are none."""
    probe = head[:PROBE]
    if len(probe) < _LEAST_NOISE:
        return False
    counts = Counter(probe).values()
    bits = -sum(n / len(probe) * math.log2(n / len(probe)) for n in counts)
    return bits > _NOISE_BITS


def _chained(head: bytes, more: Iterable[bytes]) -> Iterator[bytes]:
    yield head
    yield from more


def _coding(head: bytes) -> str | None:
    for mark, coding in _MARKS:
        if head.startswith(mark):
            return coding
    probe = head[: PROBE & ~1]
    half = len(probe) // 2
    if half < 8:
        return None
    even, odd = probe[0::2].count(0), probe[1::2].count(0)
    # Text of one script alone: nearly all of the high bytes are 0, and none of the low ones.
    if odd > 0.9 * half and even < 0.02 * half:
        return "utf-16-le"
    if even > 0.9 * half and odd < 0.02 * half:
        return "utf-16-be"
    return None


def _decoded(chunks: Iterable[bytes], coding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(coding)("replace")
    first = True
    for chunk in chunks:
        text = decoder.decode(chunk)
        if first:
            text = text.removeprefix("\ufeff")
            first = not text
        yield _newlines(text)
    yield _newlines(decoder.decode(b"", final=True))


def _newlines(text: str) -> bytes:
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.encode("utf-8", "replace")


def _text_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of binary data that can have a dump, its control characters as newlines."""
    for chunk in chunks:
        if any(sign in chunk for sign in _SIGNS):
            lines = chunk.translate(_TO_LINES).split(b"\n")
            yield b"\n".join(line for line in lines if len(line) > 3 and _printable(line)) + b"\n"
        else:
            yield b""


def _printable(line: bytes) -> bool:
    return line.isascii() or line[:200].decode("latin-1").isprintable()

# SPDX-License-Identifier: Apache-2.0
"""Write protobuf, as far as profiles need it: https://protobuf.dev/programming-guides/encoding/."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["bytes_field", "int_field", "packed_field"]

_VARINT = 0
_LENGTH = 2
_64_BITS = (1 << 64) - 1


def int_field(number: int, value: int) -> bytes:
    """Encode an integer or bool; a zero is left out, as proto3 has it."""
    return _varint(number << 3 | _VARINT) + _varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a string (as UTF-8) or a message, an empty one too."""
    return _varint(number << 3 | _LENGTH) + _varint(len(value)) + value


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """Encode repeated integers."""
    data = b"".join(map(_varint, values))
    return bytes_field(number, data) if data else b""


def _varint(value: int) -> bytes:
    value &= _64_BITS  # an int64 below zero is its two's complement
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

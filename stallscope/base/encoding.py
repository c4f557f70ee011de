# SPDX-License-Identifier: Apache-2.0
"""Give texts to others, whatever is in them. Names of files can have bytes that are no UTF-8: lone
surrogates in a text, at which an encoder fails.
"""

from __future__ import annotations

import json
import os
from typing import Any, TypeVar

import msgspec

from stallscope.base.text import clean, without_surrogates

__all__ = ["from_json", "header", "to_json", "utf8", "variable"]

T = TypeVar("T")

_LONGEST_VARIABLE = 16 << 10
"""Characters. The kernel takes 128 KiB for one variable."""


def to_json(value: Any, *, lossless: bool = False) -> bytes:
    """Return a value of msgspec as JSON. Lone surrogates are written as text (``\\udc80``).

    ``lossless``: as escapes of JSON, which ``from_json`` reads, and many others do not.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value)
        if lossless:
            return json.dumps(plain).encode()
        return msgspec.json.encode(without_surrogates(plain))


def from_json(data: bytes, kind: type[T]) -> T:
    """Read what ``to_json`` wrote. Raises: ValueError, RecursionError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(data), kind)


def utf8(text: str) -> bytes:
    """Return a text as UTF-8, lone surrogates as text."""
    return text.encode("utf-8", "backslashreplace")


def header(text: str) -> str:
    """Return a text as the value of a header of HTTP: without control characters, in UTF-8."""
    return clean(text).encode().decode("latin-1")


def variable(text: str) -> str:
    """Return a text as the value of an environment variable: its own bytes, where it has some."""
    short = text.replace("\0", "")[:_LONGEST_VARIABLE]
    try:
        os.fsencode(short)
    except UnicodeEncodeError:
        short = utf8(short).decode()
    return short

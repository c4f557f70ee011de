# SPDX-License-Identifier: Apache-2.0
"""Bounds of what rows have: texts, numbers and statements of servers are hostile input."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable

from stallscope.base.text import one_line, without_surrogates
from stallscope.fleet.tables import MAX_MS
from stallscope.server.statements import normalize

__all__ = [
    "digest",
    "integer",
    "milliseconds",
    "number",
    "number_or_none",
    "statement",
    "text",
    "unquoted",
]

MOST_INT = 2**63 - 1
_MOST_FLOAT = 1e18
_MAX_STATEMENT = 1000
_CUT = "…"
_UNREADABLE = re.compile(r"<unreadable SQL sha256:[0-9a-f]{32}>")
_LIST = re.compile(r"\(\? \+(?=\)|\Z)")
_QUOTED = re.compile(r"'[^']*(?:'|\Z)")


def text(value: str | None, limit: int = 200) -> str:
    """Return one printable line of at most ``limit`` characters; empty for None."""
    return one_line(value[: 16 * limit], limit) if value else ""


def unquoted(value: str | None, limit: int = 200) -> str:
    """Return the same without what is in single quotes, which can be data."""
    return text(_QUOTED.sub("?", value[: 16 * limit]), limit) if value else ""


def integer(value: int, most: int = MOST_INT) -> int:
    """Return a number from 0 to ``most``."""
    return min(max(0, value), most)


def number_or_none(value: float | None, digits: int = 6) -> float | None:
    """Return a finite number, rounded; None for what is not one."""
    try:
        found = math.nan if value is None else float(value)
    except OverflowError:
        return None
    if not math.isfinite(found):
        return None
    return round(min(max(-_MOST_FLOAT, found), _MOST_FLOAT), digits)


def number(value: float | None, digits: int = 6) -> float:
    """Return a finite number; 0.0 for what is not one."""
    return number_or_none(value, digits) or 0.0


def milliseconds(time_ns: int) -> int:
    """Return a moment in milliseconds, within what all engines can store."""
    return integer(time_ns // 1_000_000, MAX_MS)


def digest(parts: Iterable[str], digits: int = 16) -> str:
    """Return hexadecimal digits made of texts: the same ones have the same."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return found.hexdigest()[:digits]


def statement(value: str | None) -> str:
    """Return a statement without literals, whatever it had; the same for one that had none."""
    if not value or _UNREADABLE.fullmatch(value):
        return value or ""
    value = str(without_surrogates(value))
    whole = value.removesuffix(_CUT)
    found = _LIST.sub("(?+", normalize(whole).text)
    if whole != value and not _UNREADABLE.fullmatch(found):
        found = found.removesuffix(_CUT) + _CUT
    return one_line(found, _MAX_STATEMENT)

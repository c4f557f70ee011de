# SPDX-License-Identifier: Apache-2.0
"""Values of answers: engines give the same number as 1, 1.0, "1" or NaN."""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["newest_last", "number", "ratio", "seconds", "text", "texts", "whole"]

_PART = re.compile(r"\d{1,18}|\D+")


def whole(value: Any) -> int:
    """Return a whole number; 0 for null."""
    if isinstance(value, str):
        value = int(value) if value.lstrip("-").isdigit() else float(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return 0
    return int(value)


def number(value: Any, digits: int = 3) -> float | None:
    """Return a rounded number; None for null, and for what is no number."""
    if value is None:
        return None
    found = float(value)
    return round(found, digits) + 0.0 if math.isfinite(found) else None


def seconds(milliseconds: Any) -> float:
    """Return seconds of a sum of milliseconds; 0 for null."""
    return whole(milliseconds) / 1000


def ratio(part: float, every: float, digits: int = 4) -> float | None:
    """Return a share, or a rate; None where it is of nothing."""
    return round(part / every, digits) if every else None


def text(value: Any) -> str:
    """Return a text; empty for null."""
    return "" if value is None else str(value)


def texts(value: Any, most: int = 20) -> list[str]:
    """Return the first texts of an array."""
    return [text(one) for one in (value or ())[:most]]


def newest_last(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return the key by which versions are sorted: 9.7.4 is before 9.7.10."""
    return tuple(
        (1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part)
        for part in _PART.findall(version[:200])
    )

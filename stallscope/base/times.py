# SPDX-License-Identifier: Apache-2.0
"""Times in nanoseconds since the epoch, as text for files and for people."""

from __future__ import annotations

import contextlib
import datetime
from typing import Annotated

import msgspec

from stallscope.base import quantities

__all__ = ["Count", "Moment", "local", "rfc3339", "since"]

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""The largest time of an untrusted file: calculations with it do not overflow."""
Moment = Count
"""Nanoseconds since the epoch, or since the host started."""

_MOST_NS = 253_402_300_799 * 10**9  # the year 9999, where datetime ends


def rfc3339(time_ns: int) -> str:
    """Return the moment in UTC to the microsecond."""
    time_ns = _in_range(time_ns)
    time = datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.UTC)
    time = time.replace(tzinfo=None, microsecond=time_ns % 10**9 // 1000)
    return f"{time.isoformat(timespec='microseconds')}Z"


def local(time_ns: int) -> str:
    """Return the moment in the user's time zone, to the millisecond."""
    time_ns = min(
        _in_range(time_ns), _MOST_NS - 2 * 86_400 * 10**9
    )  # no time zone exceeds the range
    time = datetime.datetime.fromtimestamp(time_ns // 10**9)
    return f"{time:%Y-%m-%d %H:%M:%S}.{time_ns % 10**9 // 10**6:03d}"


def since(text: str, now_ns: int) -> int:
    """Return the moment that ``2026-11-21 14:50`` (local), RFC 3339 or ``3h`` (ago) means.

    Raises: ValueError.
    """
    if text.strip()[-1:].isalpha():  # 20261128 is a day, not seconds ago
        with contextlib.suppress(ValueError):
            return now_ns - round(quantities.duration(text) * 1e9)
    time = datetime.datetime.fromisoformat(text.strip())
    try:
        return int(time.timestamp() * 1000) * 10**6
    except (OverflowError, OSError) as error:
        raise ValueError(str(error)) from error


def _in_range(time_ns: int) -> int:
    return max(0, min(time_ns, _MOST_NS))

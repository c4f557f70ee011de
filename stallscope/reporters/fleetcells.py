# SPDX-License-Identifier: Apache-2.0
"""Values of a fleet's answers for people, by the names of their columns. The engine is not
trusted, nor what wrote to it: a value can have any type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stallscope.base.text import one_line
from stallscope.reporters import units

__all__ = ["COLUMNS", "UNKNOWN", "cell", "heading", "is_number", "is_time", "number_of", "text_of"]

UNKNOWN = "unknown"
_TIMES = ("start", "first", "last", "seen", "end", "began", "since", "until", "minute", "at")
"""The first word of columns that are times; other ``…_ms`` are durations."""
_TEXTS = frozenset(
    {
        *("agent_version", "against", "blocker", "chance", "first_version", "functions", "host"),
        *("id", "kind", "kinds", "lock_name", "longest", "name", "program", "server", "shapes"),
        *("signature", "signatures", "state", "statement", "title", "uid", "version", "versions"),
        "why",
    }
)
_SECONDS = ("seconds", "stalled", "_s")
_SHARES = ("share", "similarity", "confidence", "likeness")
_HEADINGS = {
    "agent_version": "Agent",
    "at_ms": "From",
    "before_hours": "Watched before, h",
    "id": "Incident",
    "lock_name": "Lock",
    "new_per_100h": "In 100 h",
    "new_incidents": "New",
    "old_incidents": "Old",
    "old_per_100h": "Before",
    "p": "By chance",
    "ratio": "Times",
    "p90_ms": "90 %",
    "per_hour": "An hour",
    "since_ms": "Since",
    "stalled_s": "Stalled",
    "threads": "Victims",
    "victim_s": "Victim time",
    "wait_s": "Waited",
    "watched_hours": "Watched, h",
}
_CUT = 400
COLUMNS = {
    "now": ("host", "state", "lasted_s", "signature", "threads", "blocker", "statement"),
    "signatures": (
        *("signature", "incidents", "hosts", "together", "stalled_s", "worst_s", "last_ms"),
    ),
    "versions": ("version", "signature", "incidents", "hosts", "first_ms"),
    "blockers": ("victim_s", "incidents", "hosts", "threads", "worst_s", "statement", "signatures"),
    "new": ("signature", "hosts", "incidents", "first_ms", "stalled_s", "versions"),
    "silent": ("host", "silent_s", "seen_ms", "state", "program", "version", "why"),
    "lost": ("kind", "why", "lost", "incidents", "hosts"),
    "regressions": (
        *("signature", "ratio", "new_per_100h", "old_per_100h", "new_incidents", "old_incidents"),
        "p",
    ),
    "locks": ("name", "kinds", "wait_s", "longest_s", "hosts", "victim_s", "incidents"),
    "unknown": (
        *("name", "hosts", "incidents", "since_ms", "first_version", "stalled_s", "functions"),
    ),
    "hosts": ("host", "at_ms", "incidents", "stalled_s"),
}
"""Of each question the columns for people; of another one, and as JSON, all."""


def is_time(column: str) -> bool:
    """Return whether a column has times."""
    return column.endswith("_ms") and column.split("_")[0] in _TIMES


def is_number(column: str) -> bool:
    """Return whether a column has numbers, which stand on the right."""
    return column not in _TEXTS and not is_time(column)


def heading(column: str) -> str:
    """Return what is above a column."""
    known = _HEADINGS.get(column)
    if known is not None:
        return known
    words = column.removesuffix("_ms").removesuffix("_s").replace("_", " ")
    return one_line(words[:1].upper() + words[1:], 30)


def text_of(value: Any, limit: int = _CUT) -> str:
    """Return a text in one line; of None an empty one."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return one_line(", ".join(text_of(item, limit) for item in value[:50]), limit)
    return one_line(str(value)[: 4 * limit], limit)


def number_of(value: Any) -> float:
    """Return a number that is finite; 0 for what is none."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def cell(column: str, value: Any, time: Callable[[int], str]) -> str:
    """Return what a cell shows. ``time``: shows nanoseconds since the epoch."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.startswith("is_"):
        return "yes" if number_of(value) else "no"
    if isinstance(value, int | float) and column not in _TEXTS:
        return _number(column, value, time)
    return text_of(value)


def _number(column: str, value: float, time: Callable[[int], str]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return UNKNOWN
    if is_time(column):
        return time(min(max(0, int(value)), 1 << 53) * 10**6)
    if column.endswith("_ms"):
        return _signed(float(value))
    if column.endswith(_SECONDS):
        return _signed(float(value) * 1000)
    if column in _SHARES:
        return f"{value * 100:.0f} %"
    if float(value).is_integer():
        return units.number(int(value)) if value >= 0 else str(int(value))
    return f"{value:.3g}"


def _signed(ms: float) -> str:
    return f"-{units.duration(-ms)}" if ms < 0 else units.duration(ms)

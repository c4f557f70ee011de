# SPDX-License-Identifier: Apache-2.0
"""Numbers for people: three digits and a unit, at most eight characters."""

from __future__ import annotations

__all__ = ["BLOCKS", "COLUMNS", "DIGITS", "LEGEND", "bars", "duration", "number", "size"]

_TIMES = (
    (1e-3, "ns", 1e6),
    (1.0, "µs", 1e3),
    (1e3, "ms", 1.0),
    (600e3, "s", 1e-3),
    (36_000e3, "min", 1 / 60e3),
    (864_000e3, "h", 1 / 3600e3),
)
"""(below this many ms, unit, units in a ms)"""
_DAY = 1 / 86_400e3
_MOST_DAYS = 99_999
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "k", "M", "G", "T", "P")

BLOCKS = "▁▂▃▄▅▆▇█"
DIGITS = "12345678"
_FIRST_NS = 1 << 13
_COLUMN_BITS = 3
COLUMNS = 8
"""Columns of a small histogram; each but the first and the last covers a factor of 8."""
LEGEND = "below 8 µs, 66 µs, 0.5 ms, 4 ms, 34 ms, 0.3 s, 2 s, longer"


def duration(ms: float) -> str:
    """Return a time, given in milliseconds."""
    if not ms:
        return "0"
    for below, unit, factor in _TIMES:
        if ms < below * 0.9995:  # 999.7 ms rounds to a second
            return f"{_digits(ms * factor)} {unit}"
    days = ms * _DAY
    return f"{days:.0f} d" if days <= _MOST_DAYS else f">{_MOST_DAYS} d"


def size(count: int) -> str:
    """Return a number of bytes."""
    return _scaled(count, _SIZES, 1024, " ")


def number(count: int) -> str:
    """Return a count; whole up to seven digits."""
    return str(count) if count < 10_000_000 else _scaled(count, _COUNTS, 1000, "")


def _scaled(count: int, units: tuple[str, ...], base: int, blank: str) -> str:
    step = 0
    value = float(min(count, 1 << 64))
    while value >= base and step < len(units) - 1:
        value /= base
        step += 1
    return f"{_digits(value) if step else count}{blank}{units[step]}"


def _digits(value: float) -> str:
    """Return three digits of a number, more where its whole part has more."""
    if value >= 99.95:
        return f"{value:.0f}"
    return (f"{value:.1f}" if value >= 9.995 else f"{value:.2f}").rstrip("0").rstrip(".")


def bars(histogram: tuple[tuple[int, int, int], ...], *, blocks: bool = True) -> str:
    """Return a histogram of nanoseconds in eight characters; the highest is the most frequent.

    Each bucket with a wait is visible: one long wait among a million short ones matters.
    """
    counts = [0] * COLUMNS
    for start, _, count in histogram:
        column = 0
        while column < COLUMNS - 1 and start >= _FIRST_NS << (_COLUMN_BITS * column):
            column += 1
        counts[column] += count
    most = max(counts)
    steps = BLOCKS if blocks else DIGITS
    return "".join(
        steps[-(-count * len(steps) // most) - 1] if count else ("·" if blocks else ".")
        for count in counts
    )

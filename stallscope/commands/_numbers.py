# SPDX-License-Identifier: Apache-2.0
"""Numbers of the command line: types of options; thresholds are ``TIME``, or ``KIND=TIME``, in
milliseconds without a unit."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from stallscope.base import quantities
from stallscope.model.waitkinds import GROUPS, KINDS

__all__ = ["count", "milliseconds", "port", "seconds", "threshold", "time_between"]

_MAX_COUNT = 1_000_000_000
_MAX_MS = 3_600_000


def count(text: str) -> int:
    """Parse a number that is not negative."""
    return _number(text, _MAX_COUNT, f"a number, 0 to {_MAX_COUNT}")


def milliseconds(text: str) -> int:
    """Parse whole milliseconds, one at least and an hour at most."""
    try:
        value = quantities.duration(text, "ms") * 1000
    except ValueError:
        value = 0.0
    if not 1 <= round(value, 6) <= _MAX_MS or round(value, 6) != int(round(value, 6)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not whole milliseconds, 1 to {_MAX_MS}, or a time such as 100ms or 2s"
        )
    return round(value)


def port(text: str) -> int:
    """Parse a TCP port."""
    return _number(text, 65535, "a port, 0 to 65535")


def _number(text: str, limit: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= limit):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a time of a millisecond at least and an hour at most."""
    return time_between(0.001, 3600)(text)


def time_between(least: float, most: float) -> Callable[[str], float]:
    """Return a parser for a time in seconds."""

    def parse(text: str) -> float:
        try:
            value = quantities.duration(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a time in seconds, {least:g} to {most:.0f}, or as 500ms, 5m or 2h"
            )
        return value

    return parse


def threshold(text: str) -> str:
    """Check a threshold; return it in milliseconds: ``file=10`` for ``file=10ms``."""
    kind, equals, number = text.rpartition("=")
    try:
        value = quantities.duration(number, "ms") * 1000
    except ValueError:
        value = -1.0
    if not (kind in KINDS or kind in GROUPS or not equals) or not 0 <= value <= _MAX_MS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not TIME or KIND=TIME, in milliseconds or as 10ms, 2s"
        )
    return f"{kind}{equals}{value:.9f}".rstrip("0").rstrip(".")

# SPDX-License-Identifier: Apache-2.0
"""Numbers of the command line: types of options; thresholds are ``MS``, or ``KIND=MS``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from stallscope.model.waitkinds import GROUPS, KINDS

__all__ = ["count", "milliseconds", "port", "seconds", "threshold", "time_between"]

_MAX_MS = 3_600_000
_MS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


def count(text: str) -> int:
    """Parse a number that is not negative."""
    return _number(text, 1_000_000_000, "a number, 0 or larger")


def milliseconds(text: str) -> int:
    """Parse whole milliseconds, one at least and an hour at most."""
    value = _number(text, _MAX_MS, f"milliseconds, 1 to {_MAX_MS}")
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not milliseconds, 1 to {_MAX_MS}")
    return value


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
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a time in seconds, {least:g} to {most:.0f}"
            )
        return value

    return parse


def threshold(text: str) -> str:
    """Check a threshold; return it unchanged."""
    kind, equals, number = text.rpartition("=")
    known = kind in KINDS or kind in GROUPS or not equals
    if not (known and _MS.fullmatch(number) and float(number) <= _MAX_MS):
        raise argparse.ArgumentTypeError(f"{text!r} is not MS or KIND=MS, in milliseconds")
    return text

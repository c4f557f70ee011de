# SPDX-License-Identifier: Apache-2.0
"""Thresholds of command lines: ``MS``, or ``KIND=MS``."""

from __future__ import annotations

import argparse
import re

from stallscope import ringfile
from stallscope.waitlines import GROUPS, KINDS

__all__ = ["of_ring", "threshold"]

_MAX_MS = 3_600_000
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


def threshold(text: str) -> str:
    """Check a threshold; it is given on as it is."""
    kind, equals, number = text.rpartition("=")
    known = kind in KINDS or kind in GROUPS or not equals
    if not (known and _NUMBER.fullmatch(number) and float(number) <= _MAX_MS):
        raise argparse.ArgumentTypeError(f"{text!r} is not MS or KIND=MS, in milliseconds")
    return text


def of_ring(thresholds: list[str]) -> dict[str, float]:
    """Return milliseconds for each kind that has a threshold in a ring; the last one wins."""
    found: dict[str, float] = {}
    for text in thresholds:
        kind, _, number = text.rpartition("=")
        found |= dict.fromkeys(ringfile.kinds_of(kind or "all"), float(number))
    return found

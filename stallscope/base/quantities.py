# SPDX-License-Identifier: Apache-2.0
"""Durations and sizes as people write them: ``5m``, ``500ms``, ``10G``. The one parser of both."""

from __future__ import annotations

import re

__all__ = ["duration", "size"]

_DURATION = re.compile(
    r"([0-9]{1,12}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s?(us|ms|sec|s|min|m|h|d|w|)", re.ASCII
)
_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s?([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}


def duration(text: str, bare: str = "s") -> float:
    """Return the seconds of ``5m``; a number without a unit counts in ``bare``.

    Raises: ValueError.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a duration")
    return float(match.group(1)) * _SECONDS[match.group(2) or bare]


def size(text: str, bare: str = "") -> int:
    """Return the bytes of ``500M`` or ``1.5 GiB``, units of 1024; a number without a unit counts
    in ``bare``: ``k``, ``m``, ``g``, ``t`` or bytes.

    Raises: ValueError.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size")
    unit = match.group(2).lower()
    # 500B is bytes, whatever a bare number counts in.
    is_bare = not unit and not text.strip().lower().endswith("b")
    return int(float(match.group(1)) * (1 << _SHIFTS.get(unit or (bare if is_bare else ""), 0)))

# SPDX-License-Identifier: Apache-2.0
"""What is known of a stall."""

from __future__ import annotations

import enum

__all__ = ["Status"]


class Status(enum.StrEnum):
    """What is known of the stall that a trigger detects."""

    STALLED = "stalled"
    """The trigger fired, and no value shows yet that it is over."""
    CLEAR = "clear"
    """The latest samples had its value, and were clear."""
    UNKNOWN = "unknown"
    """Neither was seen lately: nothing begins and nothing ends."""

# SPDX-License-Identifier: Apache-2.0
"""The two exceptions that reach a user; ``stallscope.main`` is the one place that prints them."""

from __future__ import annotations

import enum

__all__ = ["Exit", "StallscopeError", "UsageError"]


class Exit(enum.IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    STALL = 4


class StallscopeError(Exception):
    """Something failed: one line that says what, on what, and what to do."""

    exit_code = Exit.FAILED


class UsageError(StallscopeError):
    """The command line or a configuration file is wrong."""

    exit_code = Exit.USAGE

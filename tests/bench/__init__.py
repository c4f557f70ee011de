# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what a capture costs the target, and how long it takes, compared with other tools."""

from __future__ import annotations

import sys

__all__ = ["progress"]


def progress(text: str) -> None:
    """Say on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

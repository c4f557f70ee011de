# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what a capture costs the target, and what it costs in time, beside its peers."""

from __future__ import annotations

import sys

__all__ = ["progress"]


def progress(text: str) -> None:
    """Say on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

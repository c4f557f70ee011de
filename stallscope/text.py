# SPDX-License-Identifier: Apache-2.0
"""Make text that others wrote safe to print."""

from __future__ import annotations

__all__ = ["clean", "one_line"]


def clean(text: str) -> str:
    """Escape everything that could steer a terminal.

    Control characters, escapes, bidirectional overrides, line and paragraph separators and lone
    surrogates become ``\\x1b``, ``\\u202e`` and the like; what prints stays.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def one_line(text: str, limit: int = 600) -> str:
    """Make one printable line of at most ``limit`` characters."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"

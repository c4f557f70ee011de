# SPDX-License-Identifier: Apache-2.0
"""Make untrusted text safe to print."""

from __future__ import annotations

from typing import Any

__all__ = ["clean", "end_of_name", "one_line", "without_surrogates"]


def clean(text: str) -> str:
    """Escape everything that could control a terminal.

    Control characters, escapes, bidirectional overrides, line and paragraph separators and lone
    surrogates become ``\\x1b``, ``\\u202e`` and similar; printable characters stay.
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


def end_of_name(name: str, room: int) -> str:
    """Cut a name to ``room`` characters: a path to its last names, any other to its beginning."""
    if len(name) <= room:
        return name
    left = max(0, room - 1)
    if not name.startswith(("/", ".../")):
        return name[:left] + "…"
    end = name[len(name) - left :]
    return "…" + (end[end.index("/") :] if "/" in end[:-1] else end)


def without_surrogates(value: Any) -> Any:
    """Return the value with lone surrogates, which have no UTF-8, written as ``\\udc80``."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_surrogates(item) for item in value]
    return value

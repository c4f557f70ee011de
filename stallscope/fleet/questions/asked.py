# SPDX-License-Identifier: Apache-2.0
"""What a question is, what it is asked about, and what an answer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stallscope.fleet.destination import Engine

__all__ = ["Answer", "Asked", "Question"]


class Asked(msgspec.Struct, frozen=True):
    """What a question is about."""

    since_ms: int
    until_ms: int
    """Now, unless somebody looks back."""
    minutes: float = 10.0
    """``silent``, ``now``: agents that were not seen for so long. ``signatures``: the window in
    which hosts have the same stall together."""
    version: str = ""
    """``versions``: that version; ``regressions``: the new one. Empty: of all; the newest."""
    against: str = ""
    """``regressions``: the old one. Empty: the one before."""
    limit: int = 100


class Question(msgspec.Struct, frozen=True):
    """A named question."""

    name: str
    about: str
    """One line for ``--help``."""
    columns: tuple[str, ...]
    """Of the answer's rows, in the order in which they are shown."""
    answer: Callable[[Engine, Asked], Answer]
    """Raises: EngineError."""
    back_ms: int = 0
    """How long before ``since_ms`` it looks."""


class Answer(msgspec.Struct, frozen=True):
    """An answer. ``notes``: what was left out, and what makes it less sure."""

    question: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()

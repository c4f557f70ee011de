# SPDX-License-Identifier: Apache-2.0
"""Ask an engine one of the named questions."""

from __future__ import annotations

from typing import Any

import msgspec

from stallscope.fleet.destination import Engine

__all__ = ["QUESTIONS", "Answer", "Asked", "Question", "ask"]


class Asked(msgspec.Struct, frozen=True):
    """What a question is about."""

    since_ms: int
    until_ms: int
    """Now, unless somebody looks back."""
    minutes: float = 10.0
    """``silent``: agents that were not seen for so long. ``signatures``: the window."""
    version: str = ""
    """``versions``: that version; ``regressions``: the new one."""
    against: str = ""
    """``regressions``: the old one."""
    limit: int = 100


class Question(msgspec.Struct, frozen=True):
    """A named question."""

    name: str
    about: str
    """One line for ``--help``."""
    columns: tuple[str, ...]
    """Of the answer's rows, in the order in which they are shown."""


class Answer(msgspec.Struct, frozen=True):
    """An answer. ``notes``: what was left out."""

    question: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


QUESTIONS: dict[str, Question] = {}


def ask(engine: Engine, name: str, asked: Asked) -> Answer:
    """Return the answer: the same from every engine. Raises: EngineError."""
    raise NotImplementedError

# SPDX-License-Identifier: Apache-2.0
"""Ask an engine one of the named questions."""

from __future__ import annotations

import msgspec

from stallscope.base.errors import UsageError
from stallscope.fleet.destination import Engine
from stallscope.fleet.questions import (
    blockers,
    detection,
    hosts,
    locks,
    lost,
    new,
    now,
    rate,
    regressions,
    signatures,
    silent,
    unknown,
    versions,
)
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.clocks import wrong_clocks

__all__ = ["QUESTIONS", "Answer", "Asked", "Question", "ask"]

QUESTIONS: dict[str, Question] = {
    module.QUESTION.name: module.QUESTION
    for module in (
        now,
        signatures,
        versions,
        blockers,
        rate,
        new,
        detection,
        lost,
        silent,
        regressions,
        locks,
        unknown,
        hosts,
    )
}


def ask(engine: Engine, name: str, asked: Asked) -> Answer:
    """Return the answer: the same from every engine. Raises: EngineError, UsageError."""
    question = QUESTIONS.get(name)
    if question is None:
        raise UsageError(f"no question is called {name!r}: ask one of {', '.join(QUESTIONS)}")
    engine.restrict(max(0, asked.since_ms - question.back_ms), asked.until_ms)
    answer = question.answer(engine, asked)
    return msgspec.structs.replace(answer, notes=(*answer.notes, *wrong_clocks(engine, asked)))

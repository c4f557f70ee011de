# SPDX-License-Identifier: Apache-2.0
"""docs/fleet-questions.md: the SQL of each question, as ClickHouse gets it.

``python -m tests.support.fleet.questionpage`` writes it into the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stallscope.fleet.dialect import Dialect
from stallscope.fleet.engines.clickhousedialect import ClickHouseDialect
from stallscope.fleet.questions.asking import QUESTIONS, Asked

__all__ = ["PAGE", "section", "statements", "with_sql"]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "fleet-questions.md"
UNTIL = 1_795_953_600_000  # 2026-11-29 12:00 UTC
ASKED = Asked(UNTIL - 86_400_000, UNTIL, version="9.7.4", against="9.7.3")
_TEXTS = {
    "host": "db17",
    "program": "mysqld",
    "server": "mysql",
    "signature": "redo-sync",
    "kind": "redo-sync",
    "of_what": "f",
    "uid": "0f3a",
    "one_function": "w:os_fsync",
    "state": "watching",
}


class _Row(dict[str, Any]):
    """A row that has any column."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __missing__(self, name: str) -> Any:
        if name in {"shape", "shape_a", "shape_b"}:
            return f"{self._number}f2a9c0d1b7e4856"
        if name == "version":
            return ("9.7.3", "9.7.4")[self._number]
        if name in _TEXTS:
            return _TEXTS[name]
        if name in {"start_ms", "first_ms"}:
            return UNTIL - 60_000 * (self._number + 1)
        if name.endswith(("_ms", "seen")):
            return UNTIL
        return ["x"] if name.startswith("all_") or name == "kinds" else 1

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


class _Recorder:
    """An engine that answers anything, and keeps what it was asked."""

    shown = ""
    notes: Sequence[str] = ()

    def __init__(self) -> None:
        self.asked: list[str] = []

    @property
    def dialect(self) -> Dialect:
        return ClickHouseDialect()

    def restrict(self, since_ms: int, until_ms: int) -> None:
        pass

    def rows(self, sql: str) -> list[dict[str, Any]]:
        self.asked.append(sql)
        several = re.match(r"SELECT [^(]*\b(shape|version)\b", sql)
        return [_Row(0), _Row(1)] if several else [_Row(0)]

    def close(self) -> None:
        pass


def statements(name: str) -> list[str]:
    """Return what ClickHouse is asked for a question."""
    engine = _Recorder()
    QUESTIONS[name].answer(engine, ASKED)
    return engine.asked


def section(name: str, text: str) -> str:
    """Return the part of a page about a question."""
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def with_sql(text: str) -> str:
    """Return the page with the SQL of all questions."""
    for name in QUESTIONS:
        old = section(name, text)
        sql = ";\n\n".join(statements(name))
        before, _, rest = old.partition("```sql\n")
        after = rest.partition("```\n")[2]
        text = text.replace(old, f"{before}```sql\n{sql}\n```\n{after}")
    return text


if __name__ == "__main__":
    PAGE.write_text(with_sql(PAGE.read_text()))

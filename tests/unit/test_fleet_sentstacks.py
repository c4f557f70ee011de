# SPDX-License-Identifier: Apache-2.0
"""Stacks that an engine has are not sent again on the same day."""

from __future__ import annotations

import msgspec

from stallscope.fleet.batch import Batch, make
from stallscope.fleet.shipping import sentstacks
from stallscope.fleet.shipping.sentstacks import SentStacks
from stallscope.fleet.tables import StackRow


def row(name: str, day: str = "2026-11-29", rev: int = 1) -> StackRow:
    return StackRow(day=day, rev=rev, hash=name, server="mysql", frames=("a", "b"))


def hashes(batch: Batch) -> list[str]:
    return [msgspec.json.decode(line)["hash"] for line in batch.lines.get("stacks", ())]


def test_a_stack_is_sent_once_a_day() -> None:
    sent = SentStacks()
    first = sent.without(make([row("a"), row("b"), row("a", rev=2)]))
    assert hashes(first) == ["a", "b"]
    assert hashes(sent.without(make([row("a")]))) == ["a"]  # nothing was taken yet
    sent.add(first)
    assert hashes(sent.without(make([row("b", rev=9), row("c")]))) == ["c"]
    assert sent.without(make([row("a")])).lines == {}
    assert hashes(sent.without(make([row("a", "2026-11-30")]))) == ["a"]


def test_each_day_begins_again_and_old_days_are_sent() -> None:
    sent = SentStacks()
    sent.add(make([row("a")]))
    sent.add(make([row("b", "2026-11-30")]))
    sent.add(make([row("c", "2026-11-29")]))
    assert hashes(sent.without(make([row("a", "2026-11-30"), row("b", "2026-11-30")]))) == ["a"]
    assert hashes(sent.without(make([row("c", "2026-11-29")]))) == ["c"]


def test_memory_is_bounded() -> None:
    sent = SentStacks()
    for start in range(0, sentstacks.MOST * 2, 5_000):
        sent.add(make([row(f"{number:016x}") for number in range(start, start + 5_000)]))
        assert len(sent._hashes) <= sentstacks.MOST


def test_a_damaged_row_and_other_tables_stay() -> None:
    sent = SentStacks()
    batch = Batch({"stacks": (b"{}", b"no JSON"), "waits": (b"{}",)})
    assert sent.without(batch).lines == {"waits": (b"{}",), "stacks": (b"{}", b"no JSON")}
    sent.add(batch)
    assert sent.without(batch).lines["stacks"] == (b"{}", b"no JSON")

# SPDX-License-Identifier: Apache-2.0
"""The process that makes rows of stored incidents: one that it fails at costs no other."""

from __future__ import annotations

import threading

import pytest

from stallscope.fleet.batch import Batch
from stallscope.fleet.shipping import stored
from stallscope.fleet.shipping.stored import Request, StoredRows
from tests.support.servers.waiting import PATIENCE
from tests.unit.shipfakes import names_of

__all__: list[str] = []


def named(*pids: int) -> list[str]:
    return [f"20261129T1010{n:02d}.000Z-mysqld-{pid}" for n, pid in enumerate(pids)]


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_MODULE", "tests.unit.shipchild")


def answers_of(names: list[str], seconds: float) -> dict[str, tuple[Batch | None, str]]:
    answers: dict[str, tuple[Batch | None, str]] = {}

    def done(name: str, batch: Batch | None, why: str) -> None:
        assert name not in answers
        answers[name] = (batch, why)

    StoredRows(seconds).run(Request("/nowhere", names), done)
    return answers


def test_each_incident_has_an_answer() -> None:
    names = named(1, 13, 2, 3, 19, 23, 29, 4)
    answers = answers_of(names, PATIENCE)
    good = {name for name, (batch, _) in answers.items() if batch is not None}
    assert good == {name for name in names if name.rpartition("-")[2] in ("1", "2", "3", "4")}
    assert set(answers) == set(names)
    for name in good:
        batch = answers[name][0]
        assert batch is not None
        assert names_of(batch) == [name]
    assert all(why for batch, why in answers.values() if batch is None)


def test_one_that_hangs_has_none() -> None:
    (name,) = names = named(17)
    answers, seconds = answers_of(names, 0.25), 0.5
    while not answers and seconds < PATIENCE:  # it had not begun by then
        answers, seconds = answers_of(names, seconds), seconds * 2
    assert answers == {name: (None, "the analysis ended without an answer")}


def test_an_end_ends_it_at_once() -> None:
    rows = StoredRows()
    begun = threading.Event()
    thread = threading.Thread(
        target=rows.run, args=(Request("/nowhere", named(1, 17, 2)), lambda *answer: begun.set())
    )
    thread.start()
    assert begun.wait(PATIENCE)
    rows.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()

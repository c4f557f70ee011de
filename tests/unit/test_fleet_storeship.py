# SPDX-License-Identifier: Apache-2.0
"""Sending what a store has: all, again, a selection, with bad ones among them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.base.errors import StallscopeError
from stallscope.base.sending import SendError
from stallscope.fleet.batch import Batch
from stallscope.fleet.shipping import storeship
from stallscope.fleet.shipping.storeship import ship
from tests.unit.shipfakes import FakeDestination
from tests.unit.test_fleet_shipper import in_store

__all__: list[str] = []


def filled(dest: Path, count: int) -> list[str]:
    return [
        in_store(dest, f"20261129T1010{number:02d}.000Z-mysqld-4711") for number in range(count)
    ]


def ids(destination: FakeDestination) -> list[str]:
    return [row["id"] for row in destination.rows("incidents")]


def test_all_incidents_are_sent_to_each_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storeship, "BATCH_ROWS", 2)
    names = filled(tmp_path, 5)
    one, two = FakeDestination("file:///one"), FakeDestination("file:///two")
    steps: list[tuple[int, int]] = []
    results = ship(tmp_path, [one, two], progress=lambda *step: steps.append(step))
    assert ids(one) == ids(two) == names
    assert [(result.engine, result.sent, result.clean) for result in results] == [
        ("file:///one", 5, True),
        ("file:///two", 5, True),
    ]
    assert steps[-1] == (5, 5)
    first = one.rows("incidents")
    ship(tmp_path, [one])
    again = one.rows("incidents")[5:]
    assert again == first, "the same rows: nothing changes there"


def test_a_selection(tmp_path: Path) -> None:
    names = filled(tmp_path, 4)
    destination = FakeDestination()
    ship(tmp_path, [destination], incidents=names[1:3])
    assert ids(destination) == names[1:3]
    (result,) = ship(tmp_path, [destination], since_ns=time.time_ns() + 10**12)
    assert (result.sent, result.clean) == (0, True)


def test_what_cannot_be_read_or_is_refused_is_named(tmp_path: Path) -> None:
    names = filled(tmp_path, 4)
    (tmp_path / "incidents" / names[1] / "incident.json").write_text("{")
    destination = FakeDestination()

    def refuse(batch: Batch) -> None:
        rows = [msgspec.json.decode(line) for line in batch.lines.get("incidents", ())]
        if any(row["id"] == names[2] for row in rows):
            raise SendError("too odd", refused=True)

    destination.fault = refuse
    (result,) = ship(tmp_path, [destination])
    assert set(ids(destination)) == {names[0], names[3]}
    assert result.sent == 2
    assert [(one.incident, one.why) for one in result.failed] == [(names[2], "too odd")]
    assert [one.incident for one in result.left_out] == [names[1]]


def test_an_engine_that_is_down_is_tried_again_and_then_left(tmp_path: Path) -> None:
    names = filled(tmp_path, 3)
    pauses: list[float] = []
    destination, good = FakeDestination("file:///bad"), FakeDestination("file:///good")
    destination.fail("connection refused", after=7.0)
    bad, fine = ship(tmp_path, [destination, good], pause=pauses.append)
    assert [one.incident for one in bad.failed] == names
    assert bad.failed[0].why == "connection refused"
    assert fine.sent == 3
    assert pauses == [7.0, 7.0]
    trouble: Any = iter([True, False])

    def once(batch: Batch) -> None:
        if next(trouble, False):
            raise SendError("busy")

    destination.fault = once
    (result,) = ship(tmp_path, [destination], pause=pauses.append)
    assert result.clean
    assert ids(destination) == names


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StallscopeError):
        ship(tmp_path / "none", [FakeDestination()])

# SPDX-License-Identifier: Apache-2.0
"""The arithmetic behind figures of the docs: what benches call right, late, and an interval."""

from __future__ import annotations

import random
import statistics
from typing import Any

import msgspec
import pytest

from stallscope.analyzers.analysis import Finding
from stallscope.model.sessions import Session
from stallscope.model.waitlines import Event
from tests.bench.accuracy import judge
from tests.bench.blocks import Blocks
from tests.bench.experiments import EXPERIMENTS
from tests.bench.experiments.page import PAGE, PICTURES, draw, picture, render_page
from tests.bench.experiments.run import kept
from tests.bench.introspection_clients import Facts
from tests.bench.introspection_compare import Outcome, Said, compare
from tests.bench.probe_exact import differences
from tests.bench.probe_latency import THRESHOLD_MS, lateness
from tests.bench.stats import BenchError
from tests.support.known_waits import Call

__all__: list[str] = []

pytestmark = pytest.mark.nightly

MS = 1_000_000
SEED = 14


def test_the_page_of_experiments_and_its_pictures_are_what_the_results_say() -> None:
    results = kept()
    assert not any(result.quick for result in results.values())
    assert PAGE.read_text() == render_page(EXPERIMENTS, results)
    drawings = [drawing for result in results.values() for drawing in result.found.drawings]
    for drawing in drawings:
        assert (PICTURES / picture(drawing)).read_text() == draw(drawing)
    assert {path.name for path in PICTURES.glob("experiment-*.svg")} == set(map(picture, drawings))


def test_an_interval_contains_what_is_true_about_as_often_as_it_says() -> None:
    chance = random.Random(SEED)
    hits = 0
    for nr in range(200):
        values = {"a": [chance.gauss(100, 5) for _ in range(30)], "b": [0.0] * 30}
        found = Blocks(values, nr, resamples=200).sum({"a": 1.0, "b": -1.0}, "us")
        assert found.low <= found.value <= found.high
        hits += found.low <= 100 <= found.high
    assert 180 <= hits <= 199


def test_what_all_variants_of_a_block_share_falls_out_of_their_difference() -> None:
    chance = random.Random(SEED)
    drift = [chance.uniform(0, 50) for _ in range(31)]
    blocks = Blocks({"a": drift, "b": [value + 1 for value in drift]}, SEED)
    difference = blocks.sum({"b": 1.0, "a": -1.0}, "us")
    assert difference.low == pytest.approx(1) == pytest.approx(difference.high)
    ratio = blocks.ratio("b", "a")
    assert ratio.value == pytest.approx(1 + 1 / statistics.median(drift))
    assert blocks.share({"b": 1.0, "a": -1.0}, "a").value == pytest.approx(100 * (ratio.value - 1))


def finding(signature: str | None, confidence: float) -> Finding:
    return Finding(
        signature=signature,
        title="t",
        confidence=confidence,
        threads=3,
        blocker=None,
        waiters=(),
        locks=(),
        chain=(),
        evidence=(),
    )


@pytest.mark.parametrize(
    ("expect", "top", "result"),
    [
        (["a"], ("a", 0.5), "right"),
        (["b", "a"], ("a", 0.9), "right"),
        (["a"], ("a", 0.45), "missed"),
        (["a"], ("c", 0.9), "wrong"),
        (["a"], (None, 0.49), "missed"),
        (["a"], None, "missed"),
        (["?", "a"], ("c", 0.3), "quiet"),
        (["?", "a"], ("c", 0.6), "wrong"),
        ([], ("a", 0.49), "quiet"),
        ([], ("b", 0.5), "false finding"),
    ],
)
def test_a_verdict_is_right_or_wrong(
    expect: list[str], top: tuple[str | None, float] | None, result: str
) -> None:
    assert judge(expect, None if top is None else finding(*top), "dump").result == result


SAID = Said(
    7, 70, "anna", "localhost", "shop", "Query", "User sleep", "SELECT SLEEP(9)", seconds=3.0
)
FACTS = Facts(7, "anna", "localhost", "SELECT SLEEP(9)", transaction=False)
SEEN = Session(
    connection=7,
    tid=70,
    user="anna",
    host="localhost",
    database="shop",
    command="Query",
    state="User sleep",
    statement="SELECT SLEEP(9)",
    seconds=3.2,
    transaction=False,
)


def outcomes(session: Session | None) -> dict[str, str]:
    found = compare(SAID, SAID, FACTS, session)
    return {name: one.value for name, one in found.items() if one is not Outcome.RIGHT}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"user": "bert"}, "user"),
        ({"host": "10.0.0.1"}, "host"),
        ({"database": "stock"}, "database"),
        ({"command": "Execute"}, "command"),
        ({"state": "updating"}, "state"),
        ({"statement": "SELECT SLEEP(8)"}, "statement"),
        ({"seconds": 5.0}, "age"),
        ({"transaction": True}, "transaction"),
        ({"tid": 71}, "thread"),
    ],
)
def test_what_differs_is_wrong_and_what_is_unknown_is_missing(
    change: dict[str, Any], name: str
) -> None:
    assert outcomes(SEEN) == {}
    assert outcomes(None) == {"connection": "missing"}
    assert outcomes(msgspec.structs.replace(SEEN, **change)) == {name: "wrong"}
    unknown = msgspec.structs.replace(SEEN, **dict.fromkeys(change))
    assert outcomes(unknown) == {name: "missing"}


def call(tid: int, start: int, length: int, involuntary: int = 0) -> Call:
    return Call(tid, start, length, 0, 0, 1, involuntary)


def event(tid: int, start: int, length: int, received: int = 0, in_flight: bool = False) -> Event:
    return Event(
        "mutex",
        in_flight=in_flight,
        tid=tid,
        start_ns=start,
        length_ms=length / MS,
        received_ns=received,
    )


def test_lateness_counts_from_the_threshold_by_the_clock_of_the_thread() -> None:
    calls = [call(7, 1000 * MS, 25 * MS), call(7, 2000 * MS, 25 * MS)]
    passes = THRESHOLD_MS * MS
    seen = [
        # Reported in flight, and again when it has ended: the first counts.
        event(7, 1000 * MS + 500, passes, 1000 * MS + passes + MS, in_flight=True),
        event(7, 1000 * MS + 500, 25 * MS, 1026 * MS),
        event(8, 2000 * MS + 500, passes, 2000 * MS, in_flight=True),
        event(7, 2000 * MS + 500, 25 * MS, 2026 * MS),
    ]
    assert lateness(calls, seen) == [1.0, 26.0 - THRESHOLD_MS]
    with pytest.raises(BenchError, match="no event"):
        lateness(calls, seen[:2])


def test_each_wait_has_exactly_one_event() -> None:
    calls = [call(7, 1000, 5 * MS), call(7, 10 * MS, 5 * MS)]
    seen = [
        event(7, 2000, 4 * MS),
        event(7, 2000, 2 * MS, in_flight=True),
        event(7, 10 * MS, 5 * MS + 1000),
    ]
    assert differences(calls, seen) == pytest.approx([1.0, 0.001])
    with pytest.raises(BenchError, match="2 events"):
        differences(calls, [*seen, event(7, 3000, MS)])
    with pytest.raises(BenchError, match="0 events"):
        differences(calls, seen[2:])
    # A preempted thread may have read the clock too late.
    late = call(7, 1000, 9 * MS, involuntary=1)
    assert differences([late], [event(7, 2000, 5 * MS)]) == [0.0]
    assert differences([late], [event(7, 2000, 12 * MS)]) == [3.0]

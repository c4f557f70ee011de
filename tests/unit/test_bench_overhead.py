# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of scripts/bench overhead: blocks, intervals, parts that add up, the graph."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest

from stallscope.model.capture import Capture, Trigger
from tests.bench import overhead
from tests.bench.blocks import Blocks, schedule
from tests.bench.linechart import Band, Chart, Line, draw, ticks
from tests.bench.overhead_attribution import cost_goals, rate_goal
from tests.bench.overhead_calls import section_of as calls_section
from tests.bench.overhead_graph import (
    WITH,
    WITHOUT,
    Point,
    chart_of,
    course_rows,
    merged,
    spans,
    stall_times,
)
from tests.bench.overhead_inproc import LIBRARY, Sizes
from tests.bench.overhead_inproc import section_of as inproc_section
from tests.bench.overhead_load import PerQuery
from tests.bench.overhead_parts import SUMMANDS, Part, adding_up, part_rows, sides, variant_rows
from tests.bench.overhead_variants import (
    AGAIN,
    ALWAYS,
    EMPTY,
    NORMAL,
    NOTHING,
    VARIANTS,
    WHOLE,
)
from tests.bench.overhead_waits import THRESHOLD_MS, lateness_of
from tests.bench.stats import BenchError, Interval, Section, render
from tests.support.bpf_objects import attached_link
from tests.support.known_waits import Call

__all__: list[str] = []

MS = 1_000_000
SEED = 14
ALL = [variant.name for variant in VARIANTS] + [NORMAL]


def windows(names: list[str], blocks: int = 30) -> dict[str, list[PerQuery]]:
    """Return windows in which each variant takes 1 us more than the one before, and blocks vary."""
    chance = random.Random(SEED)
    drift = [chance.uniform(0, 20) for _ in range(blocks)]
    return {
        name: [
            PerQuery(50 + nr + d, 40 + d / 2, 3000 + nr, nr / 10, nr > 0 and i % 3 == 0)
            for i, d in enumerate(drift)
        ]
        for nr, name in enumerate(names)
    }


def test_each_block_has_all_variants_in_an_order_of_its_own() -> None:
    blocks = schedule(ALL, 40, random.Random(SEED))
    assert all(sorted(block) == sorted(ALL) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 30
    assert len({block[0] for block in blocks}) > len(ALL) / 2
    assert schedule(ALL, 40, random.Random(SEED)) == blocks
    assert schedule(ALL, 40, random.Random(SEED + 1)) != blocks


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
    assert blocks.sum({"b": 1.0}, "us").high - blocks.sum({"b": 1.0}, "us").low > 1
    ratio = blocks.ratio("b", "a")
    assert ratio.value == pytest.approx(1 + 1 / statistics.median(drift))
    assert blocks.share({"b": 1.0, "a": -1.0}, "a").value == pytest.approx(100 * (ratio.value - 1))


def test_blocks_of_different_lengths_are_refused() -> None:
    with pytest.raises(BenchError, match="different lengths"):
        Blocks({"a": [1.0, 2.0], "b": [1.0]}, SEED)
    with pytest.raises(BenchError, match="different lengths"):
        Blocks({"a": [], "b": []}, SEED)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = {"a": [1.0, 5.0, 2.0, 9.0, 4.0]}
    assert Blocks(values, 1).sum({"a": 1.0}, "us") == Blocks(values, 1).sum({"a": 1.0}, "us")
    single = Blocks({"a": [3.0]}, 1).sum({"a": 1.0}, "us")
    assert str(single) == "3 [3, 3] us"


def value(part: Part, medians: Mapping[str, float]) -> float:
    return sum(weight * medians[name] for name, weight in part.weights.items())


@pytest.mark.parametrize("armed", [ALWAYS, WHOLE])
def test_parts_add_up_to_all_of_it(armed: str) -> None:
    names = [name for name in ALL if armed == ALWAYS or name != ALWAYS]
    chance = random.Random(SEED)
    medians = {name: chance.uniform(50, 100) for name in names}
    parts = {part.name: part for part in adding_up(names)}
    found = {name: value(part, medians) for name, part in parts.items()}
    whole = medians[armed] - medians[NOTHING]
    assert found[f"{armed}, all of it"] == pytest.approx(whole)
    added = sum(found[part.name] for part in SUMMANDS)
    assert found["sum of these parts"] == pytest.approx(added)
    assert added + found["all of it less the sum"] == pytest.approx(whole)
    assert (f"{WHOLE}, at rest" in found) == (armed == ALWAYS)


def test_parts_of_what_was_not_measured_are_left_out() -> None:
    assert [part.name for part in adding_up([NOTHING, AGAIN, EMPTY])] == [
        "(noise: nothing again)",
        SUMMANDS[0].name,
    ]


def test_the_table_of_parts_adds_up_as_printed() -> None:
    side = sides(windows(ALL), SEED)
    rows = {row.name: row.cells for row in part_rows(side)}
    cells = [rows[part.name]["both"] for part in SUMMANDS]
    assert all(isinstance(cell, Interval) for cell in cells)
    total = rows["sum of these parts"]["both"]
    assert isinstance(total, Interval)
    assert sum(c.value for c in cells if isinstance(c, Interval)) == pytest.approx(total.value)
    text = render(Section("a", "A table", part_rows(side)))
    assert "(noise: nothing again)" in text
    assert "95" not in str(total)


def test_variants_are_compared_with_nothing() -> None:
    measured = windows([NOTHING, AGAIN, WHOLE])
    rows = {row.name: row.cells for row in variant_rows(measured, sides(measured, SEED))}
    assert "both, of nothing" not in rows[NOTHING]
    ratio = rows[WHOLE]["server, of nothing"]
    assert isinstance(ratio, Interval)
    assert 1.02 < ratio.value < 1.04
    assert str(rows[WHOLE]["its own CPU"]).startswith("0.20 %")
    assert "its own CPU" not in rows[NOTHING]
    assert "attached" not in rows[NOTHING]
    assert rows[WHOLE]["attached"] == "in 10 of 30"


def test_queries_must_arrive_as_often_beside_each_variant() -> None:
    measured = windows([NOTHING, AGAIN, WHOLE])
    assert rate_goal("test", measured)[1]
    measured[WHOLE] = [PerQuery(50, 40, 2500, 0)] * 30
    assert not rate_goal("test", measured)[1]


@pytest.mark.parametrize("can_rest", [True, False])
def test_what_is_allowed_at_rest_and_while_attached(
    can_rest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.overhead_attribution.rests", lambda: can_rest)
    measured = {
        name: [PerQuery(factor * 50, factor * 50, 3000, 0)] * 3
        for name, factor in ((NOTHING, 1), (AGAIN, 1), (WHOLE, 1.02), (ALWAYS, 1.04))
    }
    met = {
        text.partition(":")[0]: met for text, met in cost_goals("oltp_write_only", measured, SEED)
    }
    assert met == ({WHOLE: False, ALWAYS: True} if can_rest else {WHOLE: True})
    of_reads = [text.partition(":")[0] for text, _ in cost_goals("oltp_point_select", measured, 1)]
    assert of_reads == ([WHOLE] if can_rest else [])


@pytest.mark.parametrize(("factor", "met"), [(1.01, True), (1.03, False)])
def test_the_library_may_cost_the_server_two_percent(factor: float, met: bool) -> None:
    costs = {NOTHING: 1.0, AGAIN: 1.0, LIBRARY: factor}
    measured = {name: [PerQuery(cost * 50, 40, 3000, 0)] * 3 for name, cost in costs.items()}
    section = inproc_section("oltp_point_select", "mariadb", measured, Sizes(blocks=3), SEED)
    assert f"{factor:.2f}" in section.goals[0][0]
    assert [goal[1] for goal in section.goals] == [met, True]


def test_calls_at_rest_have_a_goal() -> None:
    taken = {
        call: {NOTHING: [100.0] * 5, "agent at rest, watches another": [cost] * 5}
        for call, cost in (("getppid", 101.0), ("futex_wait", 103.0))
    }
    section = calls_section(taken, overhead.QUICK.calls, SEED)
    assert [met for _, met in section.goals] == [True, False]
    assert section.left_out == ()
    assert section.rows[0].cells["getppid, of nothing"] == "-"
    assert str(section.rows[1].cells["futex_wait, of nothing"]) == "1.03 [1.03, 1.03] x"


def test_links_of_iterators_are_attached_to_nothing() -> None:
    head = "pos:\t0\nflags:\t02000000\nmnt_id:\t15\nino:\t2057\n"
    link = "link_type:\t{}\nlink_id:\t89\nprog_tag:\ta0\nprog_id:\t97\n"
    assert attached_link(head + link.format("raw_tracepoint")) == "89"
    assert attached_link(head + link.format("perf")) == "89"
    assert attached_link(head + link.format("iter")) is None
    assert attached_link(head + "prog_type:\t17\nprog_id:\t97\n") is None
    assert attached_link(head) is None


def capture(time_ns: int, delay_ms: float | None = 2.0) -> Capture:
    trigger = Trigger(reason="threshold", kind="mutex", delay_ms=delay_ms)
    return Capture(backend="bpf", processes=(), threads=(), time_ns=time_ns, trigger=trigger)


def test_lateness_is_that_of_the_first_capture_within_the_wait() -> None:
    wall, start = 10**18, 1000 * MS
    call = Call(7, start, 500 * MS, 0, 0, 1, 0)
    passed = wall + start + THRESHOLD_MS * MS
    before, first, second = (wall, passed + 5 * MS, passed + 100 * MS)
    late = lateness_of(call, [capture(second), capture(first), capture(before)], wall)
    assert late is not None
    assert (late.known_ms, late.begun_ms, late.burst_ms) == (2.0, 5.0, 3.0)
    assert lateness_of(call, [capture(before), capture(passed + 400 * MS)], wall) is None
    with pytest.raises(BenchError, match="how late"):
        lateness_of(call, [capture(first, None)], wall)


def test_a_table_is_chosen_by_its_name_or_part() -> None:
    names = ["attribution-a", "attribution-b", "calls", "figures-rest", "figures-cpu-a"]
    assert overhead.wanted(names, []) == names
    assert overhead.wanted(names, ["attribution"]) == names[:2]
    assert overhead.wanted(names, ["figures-cpu", "calls"]) == ["calls", "figures-cpu-a"]
    assert overhead.wanted(names, ["attribution-b"]) == ["attribution-b"]
    with pytest.raises(BenchError, match="no table attr; there are attribution-a"):
        overhead.wanted(names, ["attr"])


def test_rounds_and_stalls_of_the_command_line_count() -> None:
    sizes = overhead.FULL.with_options(overhead.Options(rounds=3, stalls=7))
    assert (sizes.attribution.blocks, sizes.calls.blocks) == (3, 3)
    assert (sizes.figures.waits, sizes.figures.stalls) == (3, 7)
    assert overhead.FULL.with_options(overhead.Options()) == overhead.FULL
    assert overhead.FULL.attribution.blocks >= 30
    assert overhead.FULL.figures.stalls == 100


def test_courses_are_merged_by_time() -> None:
    one = [Point(2, 10), Point(6, 20), Point(10, 30)]
    other = [Point(3, 14, True), Point(11, 34)]
    assert merged(one + other, 4) == [Point(2.5, 12, True), Point(6, 20), Point(10.5, 32)]


def test_spans_in_which_programs_were_attached() -> None:
    points = [Point(nr, 1, nr in (3, 4, 7)) for nr in range(1, 9)]
    assert spans(points) == [(2, 4), (6, 7)]
    assert spans([Point(1, 1, True), Point(2, 1, True)]) == [(0, 2)]
    assert spans([]) == []


def test_two_stalls_within_the_course() -> None:
    assert stall_times(600) == [(180, 190), (420, 430)]
    points = [Point(nr * 4 + 2, 90 if 180 <= nr * 4 + 2 <= 190 else 80) for nr in range(150)]
    rows = {row.name: row.cells for row in course_rows({WITHOUT: points}, stall_times(600))}
    assert str(rows[WITHOUT]["all"]).startswith("80 us")
    assert "not attached" not in rows[WITHOUT]
    beside = course_rows({WITH: [Point(p.at, p.us, True) for p in points]}, [])
    assert beside[0].cells["not attached"] == "-"
    assert beside[0].cells["attached for"] == "598 s"


@pytest.mark.parametrize(
    ("most", "about", "expected"),
    [
        (100, 5, [0, 20, 40, 60, 80, 100]),
        (9.97, 10, list(range(11))),
        (0.93, 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 5, [0, 1]),
    ],
)
def test_ticks_are_round_and_reach_the_top(most: float, about: int, expected: list[float]) -> None:
    assert ticks(most, about) == pytest.approx(expected)


def test_the_graph_has_both_courses_and_what_happened() -> None:
    points = [Point(nr * 4 + 2, 80, 45 <= nr < 60) for nr in range(150)]
    drawn = draw(chart_of(points, points, 600, 'a "server" <1>'))
    names = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()]
    assert names.count("path") == 2
    assert drawn.count('class="band0" x=') == 2
    assert drawn.count('class="band1" x=') == 1
    assert all(f">{name}</text>" in drawn for name in (WITH, WITHOUT, "a stall"))
    assert "&lt;1&gt;" in drawn
    assert "<script" not in drawn


def test_a_gap_breaks_a_line() -> None:
    line = Line("a", [(0, 1), (1, 2), (2, None), (3, 4)])
    drawn = draw(Chart("t", "x", "y", [line], [Band("b", 1, 99)]))
    (path,) = [e for e in ElementTree.fromstring(drawn).iter() if e.tag.endswith("path")]
    assert [word[0] for word in path.attrib["d"].split() if word[0].isalpha()] == ["M", "L", "M"]

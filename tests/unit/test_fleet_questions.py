# SPDX-License-Identifier: Apache-2.0
"""The named questions on a folder, against the same calculated in Python, and their page."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.base.errors import UsageError
from stallscope.fleet.batch import make
from stallscope.fleet.engines.duckdbengine import DuckDBEngine
from stallscope.fleet.engines.folder import FolderDestination
from stallscope.fleet.questions import chance, groups, hosts, values
from stallscope.fleet.questions.asking import QUESTIONS, Answer, Asked, ask
from stallscope.fleet.tables import AgentRow, IncidentRow, Row, day_of
from tests.support.fleet.questionanswers import ANSWERS
from tests.support.fleet.questionpage import PAGE, section, with_sql
from tests.support.fleet.questionscenes import ASKED, DAY, HOUR, NOW, Scene, scene

__all__: list[str] = []

pytestmark = pytest.mark.large

SEEDS = (7, 8)
MINUTE = 60_000


def engine_of(rows: list[Row], folder: Path) -> DuckDBEngine:
    """Return the engine of a folder with these rows, shipped in three batches."""
    third = len(rows) // 3 + 1
    for at in range(0, len(rows), third):
        FolderDestination(folder).send(make(rows[at : at + third]))
    folder.mkdir(exist_ok=True)
    return DuckDBEngine(folder)


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed {seed}")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Scene, DuckDBEngine]]:
    """Return a fleet, and an engine that has it."""
    made = scene(request.param)
    engine = engine_of(made.rows, tmp_path_factory.mktemp("fleet"))
    yield made, engine
    engine.close()


@pytest.mark.parametrize("asked", ASKED, ids=list(map(str, range(len(ASKED)))))
@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_is_what_python_calculates(
    fleet: tuple[Scene, DuckDBEngine], name: str, asked: Asked
) -> None:
    made, engine = fleet
    answer = ask(engine, name, asked)
    assert repr(answer.rows) == repr(ANSWERS[name](made, asked)[: _most(name, asked)])
    assert all(tuple(row) == QUESTIONS[name].columns for row in answer.rows)


def _most(name: str, asked: Asked) -> int | None:
    return None if name == "hosts" else asked.limit  # of hosts, which have several rows


def test_each_question_has_an_answer_in_some_scene(fleet: tuple[Scene, DuckDBEngine]) -> None:
    """Equal answers say nothing where there are none."""
    made, _ = fleet
    assert set(ANSWERS) == set(QUESTIONS)
    assert all(any(ANSWERS[name](made, asked) for asked in ASKED) for name in QUESTIONS)


def test_revisions_and_duplicates_are_in_the_scenes() -> None:
    rows = [one for one in scene(SEEDS[0]).rows if isinstance(one, IncidentRow)]
    keys = [(one.start_ms, one.uid) for one in rows]
    assert len({*keys}) < len({(*key, one.rev) for key, one in zip(keys, rows, strict=True)})
    assert len({(*key, one.rev) for key, one in zip(keys, rows, strict=True)}) < len(rows)


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_empty_fleet_has_no_rows(tmp_path: Path, name: str) -> None:
    engine = engine_of([], tmp_path / "none")
    assert ask(engine, name, Asked(NOW - DAY, NOW)).rows == []
    engine.close()


def test_a_question_that_is_not_known(tmp_path: Path) -> None:
    engine = DuckDBEngine(tmp_path)
    with pytest.raises(UsageError, match="no question is called 'nwo': ask one of now, "):
        ask(engine, "nwo", Asked(0, 1))
    engine.close()


def incident(number: int, start: int, **changes: Any) -> IncidentRow:
    """Return an incident, of a scene, with some things changed."""
    made = next(one for one in scene(3, 7).rows if isinstance(one, IncidentRow))
    changed = {"uid": f"u{number}", "day": day_of(start), "start_ms": start} | changes
    return msgspec.structs.replace(made, **changed)


def agent(**changes: Any) -> AgentRow:
    """Return an agent that was seen just now, with some things changed."""
    values: dict[str, Any] = {
        "day": day_of(NOW),
        "rev": NOW,
        "host": "h",
        "program": "mysqld",
        "pid": 1,
        "server": "mysql",
        "version": "9.7.3",
        "agent_version": "1",
        "boot": "b",
        "started_ms": NOW - 5 * HOUR,
        "seen_ms": NOW,
        "watched_s": 3600.0,
        "every_s": 60.0,
        "state": "watching",
        "skew_ms": None,
        "waiting": 0,
        "dropped": 0,
        "why": "",
        "captures_lost": 0,
    }
    return AgentRow(**(values | changes))


def answer_of(folder: Path, rows: list[Row], name: str, **changes: Any) -> Answer:
    """Return what a fleet of these rows answers."""
    engine = engine_of(rows, folder)
    try:
        return ask(engine, name, Asked(**({"since_ms": NOW - DAY, "until_ms": NOW} | changes)))
    finally:
        engine.close()


def test_notes_name_hosts_whose_clocks_are_wrong(tmp_path: Path) -> None:
    rows: list[Row] = [agent(host=f"h{n}", skew_ms=n * 1000.0) for n in (2, -6, 5, 9)]
    answer = answer_of(tmp_path, rows, "signatures")
    assert answer.notes == (
        "clocks of 2 hosts are off by more than 5 s (h9 by 9.0 s, h-6 by 6.0 s): times are by them",
    )


def test_the_end_of_the_time_that_is_asked_for_can_be_in_the_past(tmp_path: Path) -> None:
    then = NOW - HOUR
    more = {"host": "h", "program": "mysqld", "pid": 1, "threads": 5}
    ended = {"is_open": False, "interrupted": False}
    rows: list[Row] = [
        incident(1, then - 5000, end_ms=then + 1, seconds=5.001, **ended, **more),
        incident(2, then - 6000, end_ms=then - 1, seconds=5.999, **ended, **more),
        incident(3, then - 7000, end_ms=then - 120_001, seconds=0.1, **ended, **more),
        incident(4, then + 1, end_ms=then + 2, seconds=0.001, **ended, **more),
        agent(),
    ]
    found = answer_of(tmp_path, rows, "now", until_ms=then).rows
    assert [(row["uid"], row["state"], row["lasted_s"], row["end_ms"]) for row in found] == [
        ("u1", "open", 5.0, None),
        ("u2", "ended", 5.999, then - 1),
    ]


def test_an_open_incident_of_a_silent_agent_is_left_out_and_said(tmp_path: Path) -> None:
    more = {"host": "h", "program": "mysqld", "is_open": True, "end_ms": None, "seconds": None}
    late = NOW - 11 * MINUTE
    rows: list[Row] = [
        incident(1, NOW - HOUR, pid=1, **more),
        incident(2, NOW - HOUR, pid=2, **more),
        incident(3, NOW - HOUR, pid=3, **more),
        agent(pid=1),
        agent(pid=2, seen_ms=late),
        agent(pid=3, seen_ms=late, skew_ms=2.0 * MINUTE),
    ]
    answer = answer_of(tmp_path, rows, "now")
    assert {row["uid"] for row in answer.rows} == {"u1", "u3"}
    assert answer.notes[0] == (
        "left out: 1 open incidents whose agent was not seen for 10 minutes (see silent)"
    )


def test_a_rate_is_unknown_where_nobody_watched(tmp_path: Path) -> None:
    rows: list[Row] = [
        incident(1, NOW - HOUR, host="a", signature="s"),
        incident(2, NOW - HOUR, host="h", signature="s"),
        incident(3, NOW - HOUR, host="h", signature="none"),
        agent(watched_s=18_000.0),
        agent(host="idle", watched_s=18_000.0),
    ]
    answer = answer_of(tmp_path, rows, "rate", since_ms=NOW - 4 * HOUR)
    assert [(row["host"], row["per_hour"], row["watched_hours"]) for row in answer.rows] == [
        ("h", 0.25, 4.0),
        ("a", None, None),
        ("idle", 0.0, 4.0),
    ]
    assert answer.notes == ("1 host has no rate: nobody says how long they were watched",)


def test_versions_to_compare_are_chosen_where_none_are_named(tmp_path: Path) -> None:
    rows: list[Row] = [
        agent(pid=1, version="9.7.4"),
        agent(pid=2, version="9.7.10", watched_s=100.0),
        agent(pid=3, version="9.7.3"),
        agent(pid=4, server="mariadb", version="11.4"),
        incident(1, NOW - HOUR, version="9.7.10", signature="s"),
    ]
    (row,) = answer_of(tmp_path, rows, "regressions").rows
    assert (row["version"], row["against"]) == ("9.7.10", "9.7.4")
    assert (row["new_incidents"], row["old_incidents"], row["ratio"]) == (1, 0, None)
    (row,) = answer_of(tmp_path, rows, "regressions", version="9.7.10", against="9.7.3").rows
    assert row["against"] == "9.7.3"
    answer = answer_of(tmp_path, rows, "regressions", version="11.4")
    assert answer.rows == []
    assert answer.notes == ("there are no two versions that were watched in this time",)
    answer = answer_of(tmp_path, rows, "regressions", version="9.7.10", against="1.0")
    assert [row["p"] for row in answer.rows] == [None]
    assert "nobody watched a server of version 1.0 in this time: no rates" in answer.notes


def test_shapes_beyond_the_limit_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_SHAPES", 2)
    more = {"signature": "unknown", "host": "h"}
    rows: list[Row] = [
        incident(
            number, NOW - number * MINUTE, shape=f"{n}" * 16, shape_functions=(f"w:{n}",), **more
        )
        for number, n in enumerate((1, 2, 3, 1, 2), 1)
    ]
    answer = answer_of(tmp_path, rows, "unknown")
    assert [row["name"] for row in answer.rows] == ["unknown-1111", "unknown-2222"]
    assert answer.notes == ("only the 2 most frequent shapes of unknown stalls have groups",)


def test_groups_whose_leaders_begin_alike_are_not_one(tmp_path: Path) -> None:
    rows: list[Row] = [
        incident(n, NOW - HOUR, signature="unknown", shape=f"{n:016x}", shape_functions=(f"w:{n}",))
        for n in (1, 2)
    ]
    names = [row["name"] for row in answer_of(tmp_path, rows, "unknown").rows]
    assert names == ["unknown-0000000000000001", "unknown-0000000000000002"]


def test_the_exact_test_against_sums_of_fractions() -> None:
    rng = random.Random(5)
    for _ in range(300):
        a, b = rng.randrange(40), rng.randrange(40)
        times = rng.randrange(1, 1000), rng.randrange(1, 1000)
        share, n = Fraction(times[0], sum(times)), a + b
        if not n:
            continue
        parts = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
        wanted = min(1.0, float(2 * min(sum(parts[: a + 1]), sum(parts[a:]))))
        assert chance.p_value(a, b, *times) == pytest.approx(wanted, rel=1e-9, abs=1e-300)


def test_the_exact_test_of_large_counts() -> None:
    assert chance.p_value(500_000, 500_000, 1, 1) == 1.0
    assert 0 < (chance.p_value(501_000, 499_000, 1, 1) or 0) == pytest.approx(0.0456, abs=2e-4)
    assert chance.p_value(900_000, 100_000, 1, 1) == 0.0
    assert chance.p_value(0, 0, 1, 1) is None
    assert chance.p_value(1, 0, 0, 1) is None
    assert chance.p_value(1, 0, 1e-300, 1e300) is None


def test_of_many_comparisons_some_are_small_by_chance() -> None:
    assert chance.by_chance([0.03, None, 0.001]) == [False, None, False]
    assert chance.by_chance([0.03, 0.02, 0.9]) == [True, True, True]
    assert chance.by_chance([]) == []


def test_versions_are_sorted_as_versions() -> None:
    wanted = ["", "5.5.9", "9.7.3", "9.7.4", "9.7.10", "9.7.10-log", "10.6.9-MariaDB"]
    for seed in range(20):
        mixed = random.Random(seed).sample(wanted, len(wanted))
        assert sorted(mixed, key=values.newest_last) == wanted
    values.newest_last("9" * 10_000)


def test_values_are_the_same_whatever_an_engine_writes() -> None:
    assert [values.whole(one) for one in ("12", 12, 12.0, "12.0", None, math.nan)] == [12] * 4 + [
        0,
        0,
    ]
    assert values.whole("1795953600000123456") == 1795953600000123456
    assert [values.number(one) for one in (None, math.nan, math.inf, "1.23456", 1)] == [
        *(None, None, None, 1.235, 1.0)
    ]


def test_columns_of_the_heat_map_are_round_times() -> None:
    steps = [hosts.step_ms(Asked(0, hours * HOUR)) // MINUTE for hours in (1, 24, 168, 10_000)]
    assert steps == [2, 30, 360, 9 * 1440]


def test_the_page_has_the_sql_of_each_question() -> None:
    """``python -m tests.support.fleet.questionpage`` writes it."""
    text = PAGE.read_text()
    assert text == with_sql(text)
    for name in QUESTIONS:
        assert text.count(f"\n## {name}\n") == 1
        assert "```sql\nSELECT" in section(name, text)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_page_has_the_columns_of_each_question(name: str) -> None:
    named = re.findall(r"^\| (`[^|]*`) \|", section(name, PAGE.read_text()), re.M)
    assert tuple(word for cell in named for word in re.findall(r"`(\w+)`", cell)) == (
        QUESTIONS[name].columns
    )

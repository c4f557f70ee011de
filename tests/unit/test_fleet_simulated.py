# SPDX-License-Identifier: Apache-2.0
"""The simulated fleet: what tests and benchmarks of a fleet rest on."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import msgspec

from stallscope.fleet.batch import dumps, loads
from stallscope.fleet.tables import TABLES, day_of
from tests.support.fleet.realincidents import NEW_STALL, load
from tests.support.fleet.simulated import (
    AGENT_VERSION,
    HOUR_MS,
    MINUTE_MS,
    NEW_VERSION,
    OLD_VERSION,
    REGRESSED,
    Fleet,
)

UNTIL = 1_795_964_400_000
COUNT = 6000


@functools.cache
def fleet(seed: int = 5) -> Fleet:
    return Fleet(400, seed=seed, until_ms=UNTIL)


@functools.cache
def rows() -> tuple[dict[str, Any], ...]:
    made = fleet().incidents(COUNT, size=700)
    return tuple(msgspec.json.decode(line) for one in made for line in one.batch.lines["incidents"])


def test_real_stalls_have_their_names() -> None:
    real = {one.name: one for one in load()}
    assert len(real) > 60
    assert real["redo-sync-mysql97-mysql97"].row.signature == "innodb-redo-sync"
    assert real["wal-sync-postgres17-postgres17"].row.program == "postgres"
    unknown = real[NEW_STALL].row
    assert unknown.signature == "unknown"
    assert unknown.shape
    assert any("srv_conc_enter_innodb" in one for one in unknown.shape_functions)


def test_the_same_seed_makes_the_same_rows() -> None:
    again = Fleet(400, seed=5, until_ms=UNTIL)
    other = Fleet(400, seed=6, until_ms=UNTIL)
    first = [one.batch.id for one in fleet().incidents(900, size=300)]
    assert [one.batch.id for one in again.incidents(900, size=300)] == first
    assert [one.batch.id for one in other.incidents(900, size=300)] != first
    assert again.agents() == fleet().agents()
    assert again.waits(UNTIL) == fleet().waits(UNTIL)


def test_lines_have_all_columns_and_arrays_of_one_length() -> None:
    names = {column.name for column in TABLES["incidents"].columns}
    for row in rows():
        assert set(row) == names
        for prefix in ("captures", "findings", "stalled", "samples"):
            arrays = [v for k, v in row.items() if k.startswith(f"{prefix}_")]
            assert len(arrays) > 2 or prefix == "captures"
            assert len({len(one) for one in arrays}) == 1, prefix
        assert row["day"] == day_of(row["start_ms"])
        assert abs(row["end_ms"] - row["start_ms"] - row["seconds"] * 1000) < 2
        assert row["captures_time_ms"][0] == row["start_ms"]
        assert row["agent_version"] == AGENT_VERSION
        assert "@" not in row["uid"] + row["host"] + row["id"] + row["version"]


def test_keys_are_those_of_the_rows_and_each_is_there_once() -> None:
    keys = [key for one in fleet().incidents(COUNT, size=700) for key in one.keys]
    assert keys == [(row["uid"], row["rev"]) for row in rows()]
    assert len(set(keys)) == COUNT


def test_stacks_of_all_rows_are_there() -> None:
    known = {msgspec.json.decode(line)["hash"] for line in fleet().stacks().lines["stacks"]}
    assert {one for row in rows() for one in row["stalled_stack"]} <= known
    made = fleet().incident(fleet().hosts[3], UNTIL - HOUR_MS)
    [line] = made.batch.lines["incidents"]
    own = {msgspec.json.decode(one)["hash"] for one in made.batch.lines["stacks"]}
    assert own == set(msgspec.json.decode(line)["stalled_stack"])
    assert loads(dumps(made.batch)) == made.batch


def test_the_new_version_spreads_with_a_new_stall_and_a_regression() -> None:
    since = UNTIL - 24 * HOUR_MS
    halves: list[Counter[str]] = [Counter(), Counter()]
    stalls: dict[str, Counter[str]] = {OLD_VERSION: Counter(), NEW_VERSION: Counter()}
    for row in rows():
        assert since <= row["start_ms"] < UNTIL
        if row["version"] in stalls:
            halves[row["start_ms"] >= since + 12 * HOUR_MS][row["version"]] += 1
            stalls[row["version"]][row["signature"]] += 1
    early, late = (half[NEW_VERSION] / half.total() for half in halves)
    assert early < 0.3 < late
    assert "unknown" not in stalls[OLD_VERSION]
    assert stalls[NEW_VERSION]["unknown"] > 20
    shares = {v: found[REGRESSED] / found.total() for v, found in stalls.items()}
    assert shares[NEW_VERSION] > 2 * shares[OLD_VERSION]


def test_one_rack_stalls_at_once() -> None:
    windows = Counter(
        row["start_ms"] // (10 * MINUTE_MS) for row in rows() if "redo-sync" in row["signature"]
    )
    (_, most), (_, next_one) = windows.most_common(2)
    usual = sorted(windows.values())[len(windows) // 2]
    assert most + next_one > 4 * usual


def test_agents_have_their_versions_and_times() -> None:
    table = TABLES["agents"]
    agents = [msgspec.json.decode(line) for line in fleet().agents().lines["agents"]]
    keys = [tuple(row[name] for name in table.key) for row in agents]
    assert len(set(keys)) == len(keys)
    assert {row["agent_version"] for row in agents} == {AGENT_VERSION}
    watched: Counter[str] = Counter()
    for row in agents:
        watched[row["host"]] += row["watched_s"]
        assert 0 < row["watched_s"] <= 24 * 3600
    silent = [host for host in fleet().hosts if host.silent_ms is not None]
    for host in fleet().hosts:
        expected = ((host.silent_ms or UNTIL) - fleet().since_ms) / 1000
        assert abs(watched[host.name] - expected) < 1
    assert 0 < len(silent) < 20
    # A heartbeat is the same row of a later time.
    [beat] = fleet().heartbeat(fleet().hosts[0], UNTIL).lines["agents"]
    assert beat in fleet().agents().lines["agents"]


def test_waits_are_of_each_host() -> None:
    minute = UNTIL - MINUTE_MS
    waits = [msgspec.json.decode(line) for line in fleet().waits(minute).lines["waits"]]
    assert len({row["host"] for row in waits}) == 400
    assert {row["minute_ms"] for row in waits} == {minute}
    keys = {tuple(row[name] for name in TABLES["waits"].key) for row in waits}
    assert len(keys) == len(waits)

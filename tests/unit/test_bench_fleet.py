# SPDX-License-Identifier: Apache-2.0
"""scripts/bench fleet, very small, on a folder: what needs no server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from stallscope.fleet.batch import Batch
from stallscope.fleet.shipping.sender import Pace
from tests.bench import fleet
from tests.bench.fleet_cost import GOAL_PERCENT, cost_section, share_percent
from tests.bench.fleet_growth import Grown, growth_section, sends
from tests.bench.fleet_one_agent import Measured
from tests.bench.fleet_options import Options, sized
from tests.bench.fleet_places import FolderPlace, compared
from tests.bench.fleet_sizing import sizing_section
from tests.bench.stats import BenchError, Section, render
from tests.support.fleet.simulated import Fleet

UNTIL = 1_795_964_400_000
QUICK_PACE = Pace(heartbeat=1.0, first=0.1, first_beat=0.5, spread=0.1, longest_retry=0.5)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(fleet, "cluster_missing", lambda: "no servers in this test")
    monkeypatch.setattr(fleet, "chdb_missing", lambda: "no library in this test")
    return Options(
        agents=12,
        incidents=600,
        hosts=30,
        growth=(4,),
        growth_s=1.0,
        window=5.0,
        runs=1,
        agent_incidents=5,
        pace=QUICK_PACE,
        results=tmp_path / "results",
    )


def ran(options: Options, *only: str) -> dict[str, Section]:
    return {one.id: one for one in fleet.sections("mariadb", True, only, options)}


def cells(section: Section, row: str) -> dict[str, str]:
    return {
        name: str(cell)
        for one in section.rows
        if one.name == row
        for name, cell in one.cells.items()
    }


def test_a_minute_with_agents_that_are_killed(options: Options) -> None:
    found = ran(options, "minute")["minute"]
    said = cells(found, "folder")
    assert (said["incidents"], said["lost"], said["doubled"]) == ("12", "0", "0")
    assert said["agents killed"] == "12"
    assert all(met for _, met in found.goals)
    assert found.left_out == ("ClickHouse: no servers in this test",)


def test_history_and_questions(options: Options) -> None:
    found = ran(options, "history", "questions")
    said = cells(found["history"], "folder")
    assert (said["lost"], said["doubled"]) == ("0", "0")
    assert 50 < float(said["bytes of a row of incidents"]) < 4000
    smaller = cells(found["history"], "folder, compacted")
    assert 50 < float(smaller["bytes of a row of incidents"]) < 4000
    questions = {row.name for row in found["questions"].rows}
    assert {"now", "signatures", "regressions", "unknown"} <= questions
    assert "folder, DuckDB" in cells(found["questions"], "signatures")
    # What was measured is kept, and printed again without measuring.
    page = msgspec.structs.replace(options, page=True)
    again = ran(page)
    assert again.keys() == found.keys()
    for name, section in found.items():
        assert again[name].rows == section.rows
        assert "measured 20" in render(again[name])


def test_the_cost_of_an_agent(options: Options) -> None:
    found = ran(options, "agent")["agent"]
    said = cells(found, "folder")
    assert 0 < float(said["CPU of a core"].removesuffix(" %")) < 5
    assert 0 < float(said["memory"].removesuffix(" MB")) < 100


def test_the_share_is_that_of_an_hour() -> None:
    one = Measured(0.1, 0.01, 0.0, 0.0, 0.0, 1, 1)
    assert share_percent(one) == pytest.approx(100 * (14 * 0.1 + 66 * 0.01) / 3600)
    section = cost_section([("folder", one)], Options())
    assert section.goals[0][1] is (share_percent(one) <= GOAL_PERCENT)
    slow = Measured(1.0, 0.01, 0.0, 0.0, 0.0, 1, 1)
    assert not cost_section([("folder", slow)], Options()).goals[0][1]


def test_hosts_send_what_agents_do() -> None:
    seconds, hosts = 600.0, 20
    found = list(sends(Fleet(hosts, seed=3, until_ms=UNTIL), seconds, 3))
    assert [one.due for one in found] == sorted(one.due for one in found)
    assert all(0 <= one.due < seconds for one in found)
    kinds = [tuple(one.batch.lines) for one in found]
    assert kinds.count(("agents",)) == hosts * 10
    assert kinds.count(("waits",)) == hosts
    waits = next(one.batch for one in found if "waits" in one.batch.lines)
    assert len(waits.lines["waits"]) == 100
    incidents = sum("incidents" in kind for kind in kinds)
    assert 40 < incidents < 160  # 20 hosts, 14 an hour, each twice: 93


def test_bytes_of_a_day_grow_with_the_hosts() -> None:
    one = Grown(10, 1.0, 1.0, 0.5, 0.1, 4, 10**8, 0.01, 0.02, 0.0, 0)
    row_bytes = {"incidents": 300.0, "waits": 10.0, "agents": 100.0}
    found = growth_section([one, one._replace(hosts=1000)], row_bytes, Options())
    day = 14 * 24 * 300 + 1440 * 10 * 10 + 100
    assert cells(found, "10 hosts")["bytes a day, one replica"] == f"{10 * day / 1e6:.1f} MB"
    assert found.goals[0][1]
    failed = growth_section([one._replace(failures=1)], row_bytes, Options())
    assert not failed.goals[0][1]


def test_sizes_follow_from_the_rows() -> None:
    found = sizing_section({"incidents": 400.0, "waits": 10.0})
    said = cells(found, "100000 hosts")
    assert said["incidents a day"] == "33600000"
    assert said["a day, one replica"] == f"{(336 * 400 + 14_400 * 10) / 1e4:.2f} GB"
    assert said["kept, one replica"] == f"{(400 * 336 * 400 + 30 * 14_400 * 10) / 1e7:.2f} TB"
    assert cells(found, "10 hosts")["sends a second"] == "0.30"


def test_what_is_lost_or_doubled_is_seen(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path)
    made = list(Fleet(5, seed=1, until_ms=UNTIL).incidents(60, size=20))
    keys = {uid: rev for one in made for uid, rev in one.keys}
    ship(place, (one.batch for one in made[:2]))
    found = compared(place, keys)
    assert (found.lost, found.doubled, found.old, found.strange) == (20, 0, 0, 0)
    assert not found.good
    ship(place, [made[2].batch, made[2].batch, made[0].batch])
    assert compared(place, keys).good
    newer = {**keys, made[0].keys[0][0]: made[0].keys[0][1] + 1}
    assert compared(place, newer).old == 1
    assert compared(place, {uid: keys[uid] for uid in list(keys)[1:]}).strange == 1


def ship(place: FolderPlace, batches: Iterable[Batch]) -> None:
    destination = place.destination()
    for batch in batches:
        destination.send(batch)
    destination.close()


def test_sizes_that_somebody_asks_for() -> None:
    assert sized(quick=False).incidents == 1_000_000
    small = sized(quick=True, hosts=50, incidents=1000, seed=7)
    assert (small.agents, small.hosts, small.incidents, small.seed) == (50, 50, 1000, 7)
    assert small.growth == (10,)
    assert sized(quick=False, hosts=5).growth == (5,)


def test_an_unknown_part_is_an_error(options: Options) -> None:
    with pytest.raises(BenchError, match="no table nothing; there are minute, history"):
        ran(options, "nothing")

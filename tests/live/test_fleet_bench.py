# SPDX-License-Identifier: Apache-2.0
"""scripts/bench fleet, very small, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.fleet.shipping.sender import Pace
from tests.bench import fleet
from tests.bench.fleet_options import Options
from tests.bench.stats import Section

pytestmark = pytest.mark.needs("clickhouse-cluster")


def ran(tmp_path: Path, *only: str) -> dict[str, Section]:
    options = Options(
        agents=20,
        incidents=800,
        hosts=40,
        growth=(6,),
        growth_s=3.0,
        window=6.0,
        runs=1,
        agent_incidents=6,
        pace=Pace(heartbeat=1.0, first=0.1, first_beat=0.5, spread=0.1, longest_retry=1.0),
        results=tmp_path / "results",
    )
    return {one.id: one for one in fleet.sections("mariadb", True, only, options)}


def test_nothing_is_lost_while_a_shard_and_agents_are_killed(tmp_path: Path) -> None:
    found = ran(tmp_path, "minute")["minute"]
    assert [row.name for row in found.rows] == ["folder", "ClickHouse, a shard killed"]
    cells = found.rows[1].cells
    assert (cells["incidents"], cells["lost"], cells["doubled"]) == ("20", "0", "0")
    assert str(cells["shard away"]).endswith(" s")
    assert all(met for _, met in found.goals)


def test_history_questions_and_cost(tmp_path: Path) -> None:
    found = ran(tmp_path, "history", "questions", "agent", "growth")
    assert all(met for _, met in found["history"].goals)
    rows = {row.name: row.cells for row in found["questions"].rows}
    assert {"ClickHouse 18, 2 shards", "folder, DuckDB"} <= set(rows["signatures"])
    assert "800 incidents" in found["questions-rows"].rows[0].cells
    assert [row.name for row in found["agent"].rows] == ["folder", "ClickHouse"]
    [grown] = found["growth"].rows
    assert "bytes a day, one replica" in grown.cells

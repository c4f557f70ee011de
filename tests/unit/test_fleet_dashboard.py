# SPDX-License-Identifier: Apache-2.0
"""The dashboard of a fleet on ClickHouse: it is laid out, and uses what the tables have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stallscope.fleet.tables import TABLES

PATH = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "stallscope-fleet.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text())
GRID = 24
VARIABLES = {"${__from}", "${__to}", "${host:sqlstring}"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_the_dashboard_is_laid_out() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == {"datasource", "host"}


def test_each_panel_asks_the_tables_for_rows_that_count() -> None:
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        (target,) = panel["targets"]
        sql = target["rawSql"]
        assert set(re.findall(r"\$\{[^}]*\}", sql)) <= VARIABLES, panel["title"]
        assert "$__" not in sql.replace("${__", "")
        tables = re.findall(r"FROM ([a-z_]+)( FINAL)?", sql)
        assert tables, panel["title"]
        for name, final in tables:
            assert name in TABLES, panel["title"]
            assert final, f"{panel['title']}: rows of older revisions are in it"
        assert "day >= " in sql, f"{panel['title']}: it reads all partitions"

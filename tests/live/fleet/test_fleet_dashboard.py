# SPDX-License-Identifier: Apache-2.0
"""Each panel of the dashboard of a fleet runs on the distribution's ClickHouse, on a cluster of it,
and on today's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stallscope.fleet.tables import AgentRow, IncidentRow, WaitRow
from tests.live.fleet.places import Place
from tests.support.fleet.questionscenes import DAY, NOW, scene

PATH = Path(__file__).resolve().parents[3] / "docs" / "grafana" / "stallscope-fleet.json"
PANELS = [one for one in json.loads(PATH.read_text())["panels"] if one["type"] != "row"]
SEED = 5
SINCE, UNTIL = NOW - 2 * DAY, NOW


def query(panel: dict[str, Any], host: str) -> str:
    """Return the query as Grafana makes it."""
    values = {"${__from}": str(SINCE), "${__to}": str(UNTIL), "${host:sqlstring}": f"'{host}'"}
    # The scene's now is not the clock's.
    sql = panel["targets"][0]["rawSql"].replace("now()", f"toDateTime({NOW // 1000})")
    sql = sql.replace("today()", f"toDate(toDateTime({NOW // 1000}))")
    found = re.sub(r"\$\{[^}]*\}", lambda match: values[match[0]], sql)
    assert "$" not in found
    return str(found)


def test_each_panel_runs(place: Place) -> None:
    made = scene(SEED)
    place.init()
    place.send(*made.rows)
    # Replicas take a moment, and heartbeats wait in a buffer.
    for kind, table in ((IncidentRow, "incidents"), (AgentRow, "agents"), (WaitRow, "waits")):
        many = len(made.of(kind))
        place.becomes(f"SELECT toInt32(count()) AS many FROM {table} FINAL", [{"many": many}])
    answers = {
        (panel["title"], panel["type"], host): place.rows(query(panel, host))
        for panel in PANELS
        for host in ("", "db1")
    }
    for host in ("", "db1"):
        during = [
            one
            for one in made.of(IncidentRow)
            if SINCE <= one.start_ms < UNTIL and host in one.host
        ]
        assert during, f"seed {SEED}"

        def only(title: str, name: str, host: str = host) -> Any:
            (row,) = answers[title, "stat", host]
            return row[name]

        assert int(only("Incidents", "incidents")) == len(during)
        assert int(only("Hosts with one", "hosts")) == len({one.host for one in during})
        assert int(only("Captures lost", "captures")) == sum(one.lost for one in during)
        stalls = answers["Stalls per hour by signature", "timeseries", host]
        assert sum(int(row["stalls"]) for row in stalls) == len(during)
        silent = answers["Silent agents", "table", host]
        assert int(only("Silent agents", "agents")) == len(silent)
        versions = answers["Versions", "table", host]
        assert {row["version"] for row in versions} <= {one.version for one in made.of(AgentRow)}
    assert answers["Locks and files, by total wait", "table", ""], "waits were shipped"
    assert made.of(WaitRow)

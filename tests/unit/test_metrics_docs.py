# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md names every metric, and alert rules and dashboard use only those."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client import Metric

from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.threadwatch import ThreadMetrics
from stallscope.fleet.shipping.sender import Numbers
from stallscope.model.samples import Sample
from stallscope.model.waitlines import ClassWaits, Rest, WaitLine, loads
from stallscope.reporters.exposition import MetricsPage
from stallscope.reporters.prometheus import Metrics
from stallscope.reporters.statusmetrics import VARIABLES
from tests.support.servers import PATIENCE, program
from tests.unit.threadlines import IDLE, MUTEX, line, sample

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
RULES = ROOT / "docs" / "prometheus" / "alerts.yml"
RULES_TEST = ROOT / "tests" / "data" / "prometheus" / "alerts_test.yml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana" / "stallscope.json").read_text())
BASE = {"server", "datadir"}
OF_GRAFANA = {"$__rate_interval": "5m", "$__range": "6h", "$server": ".*", "$instance": ".*"}
OF_PROMETHEUS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
NAME = re.compile(r"\b(?:(?:stallscope|process)_\w+|up(?=\{))")


def everything() -> list[Metric]:
    """Return all metrics, of an agent to which everything has happened."""
    labels = {"server": "mariadbd", "datadir": "/d"}
    threads = ThreadMetrics()
    threads.take(line(sample(2, MUTEX, IDLE), rest=Rest(True, interval_ms=300, threads=412)))
    agent = AgentMetrics(labels, 1.5, threads)
    for counter in (agent.samples, agent.errors, agent.late, agent.fired, agent.incidents):
        counter["one"] = 1
    agent.up["server"] = True
    agent.undelivered["pager"] = 1
    agent.shipping = {"file:///fleet": Numbers(1, 2, 3, 4, "full", 5, "down", None, 0.1)}
    agent.written = 4096.0
    numbers = (*VARIABLES, "link.speed_bytes", "disk.datadir.in_flight", "disk.datadir.queue")
    numbers += tuple(f"cmp.{name}" for name in ("compress_ops", "compress_failures"))
    numbers += ("cmp.uncompress_ops",)
    numbers += ("disk.datadir.util", *(f"disk.datadir.{k}_await_ms" for k in ("read", "flush")))
    agent.status.take(Sample("status", 1, 1, dict.fromkeys(numbers, 1.0)))
    waits = Metrics(labels)
    name = "stalled.json"
    read = loads((ROOT / "tests" / "data" / "waits" / name).read_bytes(), name, 1)
    assert isinstance(read, WaitLine)
    classes = (ClassWaits(3, 1.0, 1.0, kind="read", file_class="data", bytes=7),)
    waits.add(msgspec.structs.replace(read, classes=classes))
    return [*waits.families(), *agent.families()]


def exposed() -> dict[str, tuple[str, set[str]]]:
    """Return type and labels of each metric, by the name that the text format has of it."""
    suffix = {"counter": "_total", "info": "_info"}
    return {
        metric.name + suffix.get(metric.type, ""): (
            metric.type,
            {label for one in metric.samples for label in one.labels} - BASE - {"le"},
        )
        for metric in everything()
    }


def documented() -> dict[str, tuple[str, set[str]]]:
    rows = re.findall(r"^\| `(stallscope_\w+)` \| (\w+) \| (.*?) ?\|", PAGE, re.M)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def series() -> set[str]:
    """Return the names that queries can use."""
    parts = ("_bucket", "_sum", "_count")
    return OF_PROMETHEUS | {
        name + part
        for name, (kind, _) in exposed().items()
        for part in (parts if kind == "histogram" else ("",))
    }


def queries() -> list[str]:
    """Return the dashboard's queries."""
    return [
        *(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())),
        *(one["expr"] for one in DASHBOARD["annotations"]["list"]),
    ]


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def check_query(query: str) -> set[str]:
    """Assert that a query uses what exists; return the names of its metrics."""
    names = set(NAME.findall(query))
    assert names, query
    assert names <= series(), query
    inside = " ".join(re.findall(r"\{([^}]*)\}", query))
    groups = " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", query))
    labels = {*re.findall(r"(\w+)\s*[=!]~?", inside), *re.findall(r"\w+", groups)}
    known = {label for name, (_, of) in exposed().items() for label in of if _in(name, names)}
    assert labels <= known | BASE | {"instance", "job", "le"}, query
    return names


def _in(name: str, names: set[str]) -> bool:
    return any(used.startswith(name) for used in names)


def promtool(*words: str, said: bytes = b"") -> None:
    done = subprocess.run(
        [str(program("promtool")), *words],
        input=said,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_every_metric() -> None:
    assert documented() == exposed()


def test_every_sample_says_of_which_server_it_is() -> None:
    page = MetricsPage()
    page.put("one", everything())
    for metric in page.collect():
        assert metric.samples
        for one in metric.samples:
            assert one.labels.keys() >= BASE


@pytest.mark.needs("promtool")
def test_metrics_follow_the_rules_of_prometheus() -> None:
    page = MetricsPage()
    page.put("one", everything())
    promtool("check", "metrics", said=page.text())


def test_rules_use_metrics_that_exist() -> None:
    for rule in rules():
        check_query(rule["expr"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]


def test_every_rule_is_tested() -> None:
    text = RULES_TEST.read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in text] == []


@pytest.mark.needs("promtool")
def test_rules_fire_where_they_must() -> None:
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(RULES_TEST))


def test_the_dashboard_uses_metrics_that_exist() -> None:
    used = set().union(*map(check_query, queries()))
    assert len(used) > 15
    for variable in DASHBOARD["templating"]["list"][1:]:
        check_query(variable["definition"])


@pytest.mark.needs("promtool")
def test_prometheus_can_parse_the_queries(tmp_path: Path) -> None:
    made = []
    for number, query in enumerate(queries()):
        for name, value in OF_GRAFANA.items():
            query = query.replace(name, value)
        assert "$" not in query
        made.append({"record": f"one:query:{number}", "expr": query})
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": made}]}))
    promtool("check", "rules", str(file))

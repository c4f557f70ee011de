# SPDX-License-Identifier: Apache-2.0
"""What is at each path of the agent's HTTP: metrics, health, and the store, read by real
commands."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from stallscope.agent.clock import NS
from stallscope.agent.http import commands
from stallscope.agent.http.address import Address, parse
from stallscope.agent.http.commands import BusyError, CommandError, Commands
from stallscope.agent.http.pages import Pages
from stallscope.agent.http.server import listening
from stallscope.agent.liveness import BEAT_SECONDS, AgentHealth, AgentState, Liveness
from stallscope.model.incident import Incident
from stallscope.reporters.exposition import Families, MetricsPage
from stallscope.store import Store
from tests.support.servers.waiting import wait_until
from tests.unit.agentfakes import FakeEnvironment, breach, running, this_server
from tests.unit.httpclient import get
from tests.unit.storelife import fill, incident

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "incidents-schema.schema.json").read_text())
ANY_PORT = parse("127.0.0.1:0")
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class Site:
    """Pages of a store, with the health and metrics that a test sets."""

    def __init__(self, dest: Path) -> None:
        self.page = MetricsPage()
        self.health: list[AgentHealth] = []
        self.dest = dest
        self.commands = Commands()

    def pages(self) -> Pages:
        return Pages(self.page, lambda: self.health, self.dest, commands=self.commands)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "store")


@pytest.fixture
def address(site: Site) -> Iterator[Address]:
    with listening(ANY_PORT, site.pages()) as found:
        yield found


def put(page: MetricsPage, server: str, polls: int) -> None:
    make = Families({"server": server, "datadir": '/a"b\\c\nd\udc80'})
    page.put(server, make.counter("agent_polls", "Polls.", {(): polls}))


def test_metrics_of_several_servers_are_one_metric(site: Site, address: Address) -> None:
    for server, polls in (("mariadbd", 1), ("mysqld", 7), ("mariadbd", 3)):
        put(site.page, server, polls)
    reply = get(address, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert reply.text.count("# TYPE stallscope_agent_polls_total counter") == 1
    found = {one.name: one for one in plain(reply.text)}
    values = {one.labels["server"]: one.value for one in found["stallscope_agent_polls"].samples}
    assert values == {"mariadbd": 3, "mysqld": 7}
    assert found["process_resident_memory_bytes"].samples[0].value > 1e6


def test_metrics_by_content_negotiation(site: Site, address: Address) -> None:
    put(site.page, "mysqld", 7)
    reply = get(address, "/metrics", {"Accept": OPENMETRICS})
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.text.endswith("# EOF\n")
    found = {one.name: one for one in openmetrics(reply.text)}  # type: ignore[no-untyped-call]
    assert found["stallscope_agent_polls"].samples[0].labels["datadir"] == '/a"b\\c\\nd\\udc80'
    for accept in ("", "*/*", "text/html", "application/openmetrics-text;version=x.y", ";;,;"):
        assert get(address, "/metrics", {"Accept": accept}).status == 200, accept


def test_health(site: Site, address: Address) -> None:
    def health() -> tuple[int, str, list[str]]:
        reply = get(address, "/healthz")
        value = json.loads(reply.body)
        assert value["schema"] == "stallscope.health/1"
        return reply.status, value["status"], value["wrong"]

    assert health() == (503, "failed", []), "there is no agent"
    ok = AgentState("mariadbd", 4711, probe=True, sql=True)
    for state, status, wrong in (
        (ok, "ok", []),
        (AgentState("mariadbd\udc80", 4711), "ok", []),  # it has just started
        (msgspec.structs.replace(ok, pid=None, sql=False), "failed", ["does not run; waiting"]),
        (
            msgspec.structs.replace(ok, blind_since=0.0, blind_why="the account is refused"),
            "failed",
            [": the account is refused"],
        ),
        (
            msgspec.structs.replace(ok, others=("mysqld (pid 7) is of user bob",)),
            "degraded",
            ["not watched: mysqld (pid 7) is of user bob"],
        ),
        (msgspec.structs.replace(ok, disk_seconds=29.0), "ok", []),
        (msgspec.structs.replace(ok, disk_seconds=31.0), "degraded", ["not answered for 31 s"]),
        (msgspec.structs.replace(ok, disk_seconds=121.0), "failed", ["not answered for 121 s"]),
        (msgspec.structs.replace(ok, probe=False), "degraded", ["no stacks"]),
        (msgspec.structs.replace(ok, waiting_jobs=500), "degraded", ["500 writes wait"]),
        (
            msgspec.structs.replace(ok, undelivered={"pager": "HTTP 503"}),
            "degraded",
            ["notifications to pager are not delivered: HTTP 503"],
        ),
        (msgspec.structs.replace(ok, writer=False), "failed", ["thread that writes"]),
    ):
        liveness = Liveness(this_server(), 0)
        liveness.state = state
        site.health = [liveness.health(NS)]
        code, found, why = health()
        assert (code, found) == (503 if status == "failed" else 200, status)
        assert get(address, "/livez").status == (200 if state.writer else 503), "a restart helps"
        assert len(why) == len(wrong)
        assert all(part in line for part, line in zip(wrong, why, strict=True)), why
    liveness = Liveness(this_server(), 0)
    site.health = [liveness.health(round((BEAT_SECONDS + 1) * NS))]
    assert health()[:2] == (503, "failed")
    assert get(address, "/livez").status == 503
    liveness.beat(round(BEAT_SECONDS * NS))
    site.health = [liveness.health(round((BEAT_SECONDS + 1) * NS))]
    assert health()[:2] == (200, "ok")


def test_health_of_a_real_agent_whose_loop_hangs(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    stuck, go_on = threading.Event(), threading.Event()

    def hang(event: str, incident: Incident | None, folder: Path | None) -> None:
        if event == "stall":
            stuck.set()
            go_on.wait(30)

    with running(environment, tmp_path) as agent:
        wait_until(lambda: agent.metrics.polls > 2, "it polls")
        found = agent.liveness.health(time.monotonic_ns())
        assert (found.status, found.state.pid) == ("ok", os.getpid())
        notify = environment.notify
        environment.notify = hang  # type: ignore[method-assign]
        environment.status.value = 100
        assert stuck.wait(30)
        before = agent.liveness.health(time.monotonic_ns()).loop_silent_seconds
        wait_until(
            lambda: agent.liveness.health(time.monotonic_ns()).loop_silent_seconds > before + 0.2,
            "it is silent",
        )
        later = agent.liveness.health(time.monotonic_ns() + round((BEAT_SECONDS + 1) * NS))
        assert later.status == "failed"
        environment.notify = notify  # type: ignore[method-assign]
        go_on.set()
        environment.status.value = 0


def test_an_agent_puts_its_metrics_where_they_are_scraped(site: Site, address: Address) -> None:
    environment = FakeEnvironment()
    environment.page = site.page
    with running(environment, site.dest):
        breach(environment)
        wait_until(lambda: "stallscope_agent_polls" in get(address, "/metrics").text, "metrics")
    text = get(address, "/metrics").text  # of its end
    assert "stallscope_agent_incidents_total{" in text
    assert 'result="suppressed"' in text


@pytest.mark.large
def test_incidents(site: Site, address: Address) -> None:
    store = Store.open(site.dest)
    fill(store, 1, lambda _: None)
    for number in range(2, 5):
        with store.begin(incident(number)) as folder:
            folder.finish(folder.incident)
    reply = get(address, "/incidents")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    value = json.loads(reply.body)
    jsonschema.validate(value, SCHEMA)
    names = [one["id"] for one in value["incidents"]]
    assert names == [incident(number).id for number in range(1, 5)]
    two = json.loads(get(address, "/incidents?last=2").body)["incidents"]
    assert [one["id"] for one in two] == names[-2:]
    one = json.loads(get(address, f"/incidents/{names[0]}").body)
    assert one["incidents"][0]["files"]
    assert get(address, f"/incidents/{names[0]}", method="HEAD").body == b""


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/incidents?last=0", 400),
        ("/incidents?last=1001", 400),
        ("/incidents?first=1", 400),
        ("/incidents/20200101T000000.000Z-x-1", 404),
        ("/incidents/20200101T000000.000Z-x-1/report", 404),
        ("/incidents/..%2f..", 404),
        ("/incidents/../../etc/passwd", 404),
        ("/incidents/--prune", 404),
        ("/incidents/", 404),
        ("/report", 404),
        ("/metrics/", 404),
        ("http://localhost/metrics", 404),
        ("*", 404),
    ],
)
def test_what_is_not_there(path: str, status: int, site: Site, address: Address) -> None:
    Store.open(site.dest)
    reply = get(address, path)
    assert reply.status == status, reply.text
    assert "Traceback" not in reply.text


@pytest.mark.large
@pytest.mark.needs("web")
def test_reports(site: Site, address: Address) -> None:
    store = Store.open(site.dest)
    fill(store, 1, lambda _: None)
    fill(store, 2, lambda _: None)
    last = get(address, "/report")
    assert (last.status, last.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert last.text.startswith("<!doctype html>")
    assert last.text.rstrip().endswith("</html>")
    assert incident(2).id in last.text
    assert incident(1).id in get(address, f"/incidents/{incident(1).id}/report").text


@pytest.mark.large
def test_one_command_at_a_time(
    site: Site, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(site.dest)
    reading = site.commands.run(["signatures", "--json"])
    assert next(reading)
    with monkeypatch.context() as impatient:
        impatient.setattr(commands, "TURN_SECONDS", 0.05)
        reply = get(address, "/incidents")
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert get(address, "/healthz").status == 503, "that needs no command"
    assert get(address, "/metrics").status == 200
    reading.close()  # type: ignore[attr-defined]
    assert get(address, "/incidents").status == 200


@pytest.mark.large
def test_a_command_that_takes_too_long_is_ended() -> None:
    found = Commands(seconds=0.01)
    with pytest.raises(CommandError, match=r"no answer within 0\.01 s"):
        found.run(["signatures", "--json"])
    with pytest.raises(CommandError):  # its turn was given back
        found.run(["signatures", "--json"])


def test_a_command_that_cannot_be_killed_is_not_started_again() -> None:
    """As one that reads from a disk which does not answer."""

    class Stuck:
        def wait(self, timeout: float) -> None:
            raise subprocess.TimeoutExpired("stuck", timeout)

    found = Commands()
    found._hangs = Stuck()  # type: ignore[assignment]
    with pytest.raises(BusyError, match="disk does not answer"):
        found.run(["signatures"])


@pytest.mark.large
def test_a_killed_command_that_ends_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its low priority keeps it from ending while the host is busy."""
    found = Commands()
    with monkeypatch.context() as impatient:
        impatient.setattr(commands, "_END_SECONDS", 0.0)
        for _ in range(3):
            reading = found.run(["signatures", "--json"])
            assert next(reading)
            reading.close()  # type: ignore[attr-defined]
    assert b"".join(found.run(["signatures", "--json"]))


def test_a_command_runs_at_low_priority_and_its_output_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    limit = commands._limit

    def note(pid: int) -> None:
        limit(pid)
        seen.append(os.getpriority(os.PRIO_PROCESS, pid))

    monkeypatch.setattr(commands, "_limit", note)
    monkeypatch.setattr(commands, "MAX_OUTPUT", commands.PIECE)
    assert 0 < len(b"".join(Commands().run(["signatures", "--json"]))) <= commands.PIECE
    assert seen == [commands.NICE]

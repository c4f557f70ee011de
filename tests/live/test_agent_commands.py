# SPDX-License-Identifier: Apache-2.0
"""``stallscope watch`` and ``cron`` as people and cron run them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_metrics
from prometheus_client.samples import Sample

from stallscope.store import bundle, read_incident
from stallscope.store.appended import frames
from tests.live.shots import run
from tests.support.agents import agent, incidents
from tests.support.servers import MEMORY, PATIENCE, MariaDB, SqlServer, program, wait_until
from tests.support.stalls import metadata_lock_pileup
from tests.support.targets import trouble

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "waits", "mariadb")]


DURATIONS = (4, 16, 64)
"""Seconds to run for: where the machine is slow, the first are not enough."""
STOP_SECONDS = 2.0
STOPS = 5
"""Times at most that it is ended, until it has not had to wait for a CPU."""


@pytest.fixture
def server(mariadb: MariaDB) -> SqlServer:
    return mariadb


def test_once_samples_and_ends(server: SqlServer, tmp_path: Path) -> None:
    done = run("watch", "-p", server.pid, "--dest", tmp_path, "--once", "--poll-interval", "0.1")
    assert trouble(server.pid) == []
    assert server.answers()
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert incidents(tmp_path) == []


def cron(server: SqlServer, dest: Path, *options: object) -> list[str]:
    words = ("cron", "-p", server.pid, "--dest", dest, *options)
    return [sys.executable, "-m", "stallscope", *map(str, words)]


def test_a_pass_finds_a_stall_once_and_it_is_exported_without_names(
    server: SqlServer, tmp_path: Path
) -> None:
    store, out = tmp_path / "store", tmp_path / "out.tar.gz"
    triggers = tmp_path / "triggers.toml"
    triggers.write_text(
        'defaults = false\n[[trigger]]\nname = "ddl"\n'
        "variable = 'state(\"Waiting for table metadata lock\")'\n"
        "threshold = 5\ncycles = 1\nsleep = 3600\n"
    )

    def passed(seconds: int) -> int:
        words = ("--triggers", triggers, "--seconds", seconds, "--fail-on-stall", "--raw-sql")
        return run("cron", "-p", server.pid, "--dest", store, *words).returncode

    with metadata_lock_pileup(server):
        first = next(filter(None, map(passed, DURATIONS)), 0)
        second = passed(DURATIONS[0])
    assert (first, second) == (4, 4), "it goes on"
    (incident,) = incidents(store)
    assert not incident.interrupted
    done = run("incidents", "export", incident.id, "--redact", "--out", out, "--dest", store)
    assert done.returncode == 0, done.stderr
    subprocess.run(["tar", "-xf", out, "-C", tmp_path], check=True)
    top = tmp_path / bundle.TOP
    text = ""
    for path in top.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            text += (frames(data, 1 << 28)[0] if path.suffix == ".zst" else data).decode()
    # The schema and table of the stall, and where the server has its files.
    names = ("shop", "orders", str(server.folder))
    assert [name for name in names if name in text] == []
    # The host, as a word: one called "vm" is not in a mangled name like "netPvmc".
    assert re.search(rf"(?<!\w){re.escape(os.uname().nodename)}(?!\w)", text) is None
    one = read_incident(top / "incidents" / incident.id)
    assert one.incident.verdict is not None
    assert incident.verdict is not None
    assert one.incident.verdict.signature == incident.verdict.signature == "metadata-lock"
    again = run("analyze", one.path / one.incident.captures[0].file, "--json")
    assert json.loads(again.stdout)["findings"][0]["signature"] == "metadata-lock"
    assert "raw-sql" not in " ".join(map(str, top.rglob("*")))


def test_a_signal_ends_it_within_two_seconds(server: SqlServer) -> None:
    took: list[float] = []
    # In memory: what a disk does not take in time is left to the next agent.
    with tempfile.TemporaryDirectory(prefix="stallscope-", dir=MEMORY) as folder:
        while not took or (took[-1] > STOP_SECONDS and len(took) < STOPS):
            took.append(seconds_to_end(server, Path(folder) / str(len(took))))
    assert took[-1] <= STOP_SECONDS, f"seconds to the end: {took}"


def seconds_to_end(server: SqlServer, dest: Path) -> float:
    """End an agent during a stall and check what is left; return how long it took."""
    with agent(server, dest) as watch:
        with metadata_lock_pileup(server):
            watch.wait(lambda: watch.of("stall"), "stall")
            begun = time.monotonic()
            assert watch.stop(signal.SIGINT) == 0
            taken = time.monotonic() - begun
        assert not list((dest / "spool").iterdir())
    (incident,) = incidents(dest)
    assert incident.interrupted
    assert incident.verdict is not None
    return taken


@pytest.mark.needs("promtool")
def test_its_metrics_are_whole(server: SqlServer, tmp_path: Path) -> None:
    file = tmp_path / "agent.prom"
    with agent(server, tmp_path / "store", "--prometheus", file):
        wait_until(
            lambda: (
                file.exists()
                and 'agent_collector_samples_total{collector="' in file.read_text()
                and "stallscope_watched_seconds_total" in file.read_text()
            ),
            "metrics of the agent and of the waits",
        )
    done = subprocess.run(
        [str(program("promtool")), "check", "metrics"],
        input=file.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("web")
def test_it_listens(server: SqlServer, tmp_path: Path) -> None:
    """Of a stall: metrics that are documented, those that alert rules need, and its report."""
    root = Path(__file__).parents[2]
    documented = set(re.findall(r"`(stallscope_\w+)`", (root / "docs/metrics.md").read_text()))
    rules = (root / "docs/prometheus/alerts.yml").read_text()
    options = ("--listen", "127.0.0.1:0", "--notify-command", "true")
    with agent(server, tmp_path / "store", *options) as watch:
        (line,) = (line for line in watch.said if "listening on" in line)
        base = line.rpartition(" ")[2]

        def get(path: str) -> str:
            try:
                with urllib.request.urlopen(base + path, timeout=PATIENCE) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as error:
                pytest.fail(f"{path}: {error}: {error.read().decode()}")

        def scraped() -> dict[str, list[Sample]]:
            return {one.name: one.samples for one in parse_metrics(get("/metrics"))}

        def open_incident() -> bool:
            found = scraped().get("stallscope_agent_incident_open", [])
            return any(one.value for one in found)

        assert json.loads(get("/healthz"))["status"] == "ok"
        with metadata_lock_pileup(server):
            wait_until(open_incident, "the incident is open")
            watch.wait(lambda: watch.of("stall"), "stall")
        watch.wait(lambda: watch.of("end"), "end")
        wait_until(lambda: not open_incident(), "the incident is over")
        names = {one.name for samples in scraped().values() for one in samples}
        own = {re.sub("_(bucket|sum|count)$", "", one) for one in names if "stallscope" in one}
        assert {one for one in own if one not in documented} == set()
        assert set(re.findall(r"stallscope_\w+", rules)) - names == set()
        assert "process_resident_memory_bytes" in names
        (listed,) = json.loads(get("/incidents"))["incidents"]
        assert listed["verdict"] == "metadata-lock"
        assert "metadata-lock" in get("/report")
        assert get(f"/incidents/{listed['id']}/report").startswith("<!doctype html>")
    assert trouble(server.pid) == []


def test_wrong_usage(tmp_path: Path) -> None:
    for words, said in (
        (("--once", "--duration", "3"), "--once and --duration cannot be combined"),
        (("--poll-interval", "0.01"), "0.05 to 60"),
        (("--webhook", "file:///etc/passwd"), "is not a URL, write http://"),
        (("--notify-command", "'"), "--notify-command"),
        (("--triggers", "/nonexistent"), "/nonexistent"),
    ):
        done = run("watch", "-p", os.getpid(), "--dest", tmp_path / "store", *words)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert done.stderr.count("\n") == 1

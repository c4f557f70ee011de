# SPDX-License-Identifier: Apache-2.0
"""Parts of the agent: history, writer, the verdict of an incident, its metrics and lines."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from stallscope.agent.events import Callback, EventQueue
from stallscope.agent.history import History
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.threadwatch import ThreadMetrics
from stallscope.agent.verdict_process import VerdictRequest
from stallscope.agent.verdict_process.naming import name_capture, verdict_of
from stallscope.agent.writer import MAX_JOBS, Writer
from stallscope.analyzers import catalog, engine
from stallscope.base.errors import StallscopeError
from stallscope.model import capturefile
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry, Verdict
from stallscope.reporters.agentlines import render
from tests.unit.agentlog import Messages
from tests.unit.captures import convoy
from tests.unit.metricspages import text_of

SECOND = 10**9


def test_the_history_keeps_the_last_seconds_and_no_more_bytes_than_it_may() -> None:
    history = History(60, 1000)
    for second in range(100):
        history.add(second * SECOND, b"x" * 10)
    assert len(history) == 61
    assert history.dropped == 0
    assert list(history.since(98 * SECOND)) == [b"x" * 10] * 2
    history.add(100 * SECOND, b"y" * 995)
    assert history.bytes == 995
    assert list(history.since(0)) == [b"y" * 995]


def test_a_line_larger_than_the_history_is_not_kept() -> None:
    history = History(60, 10)
    history.add(0, b"x" * 11)
    assert len(history) == history.bytes == 0


def test_the_version_of_the_server_is_what_the_capture_says(tmp_path: Path) -> None:
    path = tmp_path / "0001.jsonl.zst"
    capturefile.write(convoy(), path)
    answer, _ = name_capture(VerdictRequest(str(path)), catalog.load([]))
    assert answer.version == "5.5.9"


@pytest.mark.parametrize("known", [True, False])
def test_the_blocker_is_reported_with_its_connection(known: bool) -> None:
    capture = convoy()
    holder, *waiters = capture.threads
    if known:
        holder = msgspec.structs.replace(holder, connection=7, user="app", command="Query")
    capture = msgspec.structs.replace(capture, threads=(holder, *waiters))
    found = verdict_of(engine.analyze(capture, catalog.load([])))
    assert found is not None
    assert found.blocker is not None
    assert found.blocker.startswith("thread 100, ")
    assert found.blocker.endswith(", connection 7, user app") == known


def test_a_blocker_that_another_thread_can_be_as_well_is_a_likely_one() -> None:
    analysis = engine.analyze(convoy(), catalog.load([]))
    finding = analysis.findings[0]
    assert finding.blocker is not None
    unsure = msgspec.structs.replace(finding.blocker, certain=False)
    finding = msgspec.structs.replace(finding, blocker=unsure)
    found = verdict_of(msgspec.structs.replace(analysis, findings=(finding,)))
    assert found is not None
    assert found.blocker is not None
    assert found.blocker.startswith("thread 100 (likely), ")


def test_the_writer_works_in_order_and_what_follows_is_the_loops() -> None:
    events = EventQueue()
    writer = Writer(events.put)
    done: list[object] = []
    writer.submit(lambda: 1, done.append)

    def fails() -> None:
        raise StallscopeError("the disk is full")

    with Messages() as log:
        writer.submit(fails, otherwise=done.append)
        writer.submit(lambda: 2, done.append)
        assert writer.close(10)
    while isinstance(event := events.get(0), Callback):
        event.then()
    assert done == [1, "the disk is full", 2]
    assert log.messages == ["the disk is full"]
    assert writer.failed == 1


def test_a_disk_that_hangs_delays_nobody_and_piles_nothing_up() -> None:
    events = EventQueue()
    writer = Writer(events.put)
    gate = threading.Event()
    writer.submit(lambda: gate.wait(30))
    for _ in range(MAX_JOBS + 500):
        writer.submit(lambda: None, needed=False)
    assert writer.dropped > 400
    assert not writer.close(0.05)
    gate.set()
    assert writer.close(10)


def incident() -> Incident:
    target = TargetEntry(4711, "mariadbd")
    fired = Fired("threads", "Threads_running 187 > 40\x1b[2J", 0)
    entry = CaptureEntry("captures/0001.jsonl.zst", 0, "trigger", analyzed=True)
    return Incident(
        "20261121T145012.345Z-mariadbd-4711", 0, target, triggers=(fired,), captures=(entry,)
    )


def test_people_get_a_line_of_an_incident_and_of_its_end() -> None:
    verdict = Verdict("metadata-lock", "", 0.89, 20, ending="KILL 88;")
    found = msgspec.structs.replace(incident(), verdict=verdict)
    (line,) = render("stall", found, Path("/var/lib/x"), as_json=False)
    assert line == (
        "1970-01-01T00:00:00.000Z stall: mariadbd (pid 4711): metadata-lock (0.89), 20 threads;"
        " to end it: KILL 88; threads:"
        " Threads_running 187 > 40\\x1b[2J; 1 capture: /var/lib/x"
    )
    ended = msgspec.structs.replace(found, end_ns=42 * 10**9)
    (line,) = render("end", ended, Path("/var/lib/x"), as_json=False)
    assert line == (
        "1970-01-01T00:00:42.000Z over: mariadbd (pid 4711): metadata-lock, lasted 42 s: /var/lib/x"
    )
    (line,) = render("stall", incident(), Path("/x"), as_json=False)
    assert "its captures show no stall" in line


def test_programs_get_lines_of_json_at_its_end_too() -> None:
    (line,) = render("end", incident(), Path("/x"), as_json=True)
    value = msgspec.json.decode(line)
    assert value["schema"] == "stallscope.agent/1"
    assert (value["event"], value["path"]) == ("end", "/x")
    assert msgspec.convert(value["incident"], Incident) == incident()


def test_a_capture_is_counted_in_the_bucket_of_its_delay() -> None:
    metrics = AgentMetrics({}, 0, ThreadMetrics())
    metrics.captured(0.02)
    metrics.captured(3600)
    text = text_of(metrics.families())
    assert 'seconds_bucket{le="0.01"} 0.0\n' in text
    assert 'seconds_bucket{le="0.025"} 1.0\n' in text
    assert 'seconds_bucket{le="+Inf"} 2.0\n' in text
    assert "seconds_count 2.0\n" in text

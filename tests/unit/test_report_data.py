# SPDX-License-Identifier: Apache-2.0
"""What the HTML report is made of, and its command's errors; no browser."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.base.errors import Exit
from stallscope.main import main
from stallscope.model.capture import Frame, Lock, LockKind, Thread
from stallscope.model.incident import Fired
from stallscope.model.samples import Sample
from stallscope.model.waitlines import loads
from stallscope.reporters.html import assets, histograms, timeline, waitgraph
from stallscope.reporters.html.pack import Entry, shown
from stallscope.reporters.html.page import Builder, embedded
from tests.unit.captures import stack
from tests.unit.reports import busy, rendered, samples, saved, store_incident, value, waits_line
from tests.unit.threadlines import FSYNC, IDLE, MUTEX, RUNNING, line, sample

CATALOG = catalog.load([])


def run(*words: str | Path) -> int:
    return main(["report", *map(str, words)])


needs_web = pytest.mark.needs("web")


@needs_web
def test_every_thread_is_in_it() -> None:
    capture = busy(30)
    data = value(rendered(capture))
    (one,) = data["captures"]
    assert [data["who"][who][0] for who in one["who"]] == [t.tid for t in capture.threads]
    for thread, what in zip(capture.threads, one["what"], strict=True):
        _, names, raw, *_, query, _, _ = data["what"][what]
        assert data["texts"][query] == (thread.query or "")
        frames = [data["texts"][data["frames"][frame][0]] for frame in data["raws"][raw]]
        assert frames == [frame.symbol for frame in thread.frames]
        assert len(data["stacks"][names]) == len(thread.frames)
    # What is equal is there once.
    assert len(data["raws"]) == 5  # three stacks, one of the kernel, and none
    assert len(data["texts"]) == len(set(data["texts"]))


@needs_web
def test_equal_captures_cost_little() -> None:
    sizes = []
    for count in (1, 21):
        builder = Builder()
        for _ in range(count):
            builder.add(engine.analyze(busy(500), CATALOG), Entry("a"))
        sizes.append(len(builder.render(assets.load())))
    assert (sizes[1] - sizes[0]) / 20 / 500 < 60, "bytes a thread of one more capture"


def test_json_ends_no_element() -> None:
    text = "</script><!--<script>&amp;\u2028\u2029]]>"
    out = embedded({"a": text})
    assert not set("<>&\u2028\u2029") & set(out)
    assert json.loads(out) == {"a": text}


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("a\n\tb", "a b"),
        ("\x1b[31m\x00", "\\x1b[31m\\x00"),
        ("a\u202eb", "a\\u202eb"),
        ("\udc80", "\\udc80"),
        (None, ""),
        ("x" * 20, "xxxxxxxxxx… (20 characters)"),
    ],
)
def test_text_is_fit_to_be_shown(text: str | None, out: str) -> None:
    assert shown(text, 10 if text and len(text) == 20 else 1000) == out


def graph_of(threads: list[Thread], locks: list[Lock]) -> dict[str, Any]:
    capture = msgspec.structs.replace(busy(), threads=tuple(threads), locks=tuple(locks))
    return waitgraph.build(engine.analyze(capture, CATALOG))


def test_two_thousand_waiters_are_few_nodes() -> None:
    graph = waitgraph.build(engine.analyze(busy(2000), CATALOG))
    assert [node["kind"] for node in graph["nodes"]] == ["thread", "lock", "group"]
    assert graph["nodes"][0]["root"]
    assert graph["nodes"][2]["count"] == 2000
    assert graph["links"] == [[0, 1, 2000, "futex"], [1, 2, 2000, "futex"]]
    assert [depth for depth, _ in waitgraph.walk(graph)] == [0, 1, 2]


def test_graph_stays_small_whatever_waits() -> None:
    """Each of 2,000 threads waits in a place of its own, or for a lock of its own."""
    locks = [Lock(0, 0x1000 + 64 * i, LockKind.MUTEX, owner_tid=5000 + i) for i in range(400)]
    owners = [Thread(5000 + i, stack("read", f"own_{i}"), state="D") for i in range(400)]
    waiters = [
        Thread(
            10_000 + i,
            stack("__lll_lock_wait", "pthread_mutex_lock", f"place_{i}"),
            state="S",
            lock=i % 400 if i < 1000 else 0,
        )
        for i in range(2000)
    ]
    graph = graph_of(owners + waiters, locks)
    assert len(graph["nodes"]) < 400
    threads = sum(node["count"] for node in graph["nodes"] if node["kind"] == "group")
    assert threads + graph["left_out"] == 2000


def test_rings_are_marked() -> None:
    waiting = stack("__lll_lock_wait", "pthread_mutex_lock", "work")
    locks = [Lock(0, 0x1000 + i, LockKind.MUTEX, owner_tid=1 + (i + 1) % 3) for i in range(3)]
    graph = graph_of([Thread(1 + i, waiting, state="S", lock=i) for i in range(3)], locks)
    assert [node["cycle"] for node in graph["nodes"] if node["kind"] == "thread"] == [True] * 3
    assert len(graph["links"]) == 6


def test_counters_are_rates_and_gauges_are_not() -> None:
    fired = Fired(
        "slow", "Questions per second is 100, over 10 (25 x Slow, which is 4); in 1 sample", 1
    )
    tables = {table["source"]: table for table in timeline.build(samples(), [fired])}
    status = tables["status"]["series"]
    assert set(status) == {"Threads_running", "Questions/s"}, "Uptime says nothing"
    assert status["Questions/s"][0] is None
    assert status["Questions/s"][5] == 100
    assert status["Threads_running"][-1] == 180
    assert tables["status"]["first"] == ["Questions/s", "Threads_running"], "a trigger names it"


def test_a_counter_that_fell_has_no_rate() -> None:
    def sample(second: int, count: float) -> Sample:
        return Sample("status", second * 10**9, second * 10**9, {"Questions": count})

    (table,) = timeline.build([sample(1, 10), sample(2, 30), sample(3, 5), sample(4, 6)], [])
    assert table["series"] == {"Questions/s": [None, 20, None, 1]}


def test_series_are_bounded() -> None:
    many = {f"Status_{i}": float(i) for i in range(5000)}
    samples = [
        Sample("x", second, second * 10**9, {k: v + second for k, v in many.items()})
        for second in range(3)
    ]
    (table,) = timeline.build(samples, [])
    assert len(table["series"]) == timeline.MAX_SERIES


def test_threads_by_activity_are_series() -> None:
    found = [sample(second * 10**9, IDLE, RUNNING) for second in (1, 2)]
    found.insert(0, sample(3 * 10**9, IDLE, MUTEX, FSYNC))
    (table,) = timeline.threads(found)
    assert table["time"] == [1000, 2000, 3000]
    assert table["series"] == {
        "active threads": [2, 2, 15],
        "threads that run": [2, 2, 0],
        "threads in mutex": [0, 0, 12],
        "threads in fsync": [0, 0, 3],
        "idle threads": [380, 380, 380],
    }
    assert table["first"] == ["active threads", "threads in mutex"]
    assert timeline.threads([]) == []


@needs_web
def test_an_incident_shows_what_its_threads_did() -> None:
    builder = Builder()
    builder.add(engine.analyze(busy(3), CATALOG), Entry("x"))
    builder.waits([line(sample(1 * 10**9, MUTEX, IDLE)), line(sample(2 * 10**9, RUNNING))])
    (table,) = value(builder.render(assets.load()))["timeline"]
    assert table["source"] == "threads"
    assert table["series"]["active threads"] == [12, 2]


def test_histograms_add_up() -> None:
    lines = [loads(waits_line(), "x", 1), loads(waits_line(), "x", 2)]
    mutex, fsync = histograms.build(lines)
    assert (mutex.kind, mutex.lock, mutex.count, mutex.in_flight) == ("mutex", True, 186, 20)
    assert sum(bar.count for bar in mutex.bars) == 2 * 23
    assert [bar.slow for bar in mutex.bars] == [False, False, True]
    assert not fsync.lock
    rows, others = histograms.keys(lines)
    assert rows[0].name == "LOCK_open"
    assert others == 0


@needs_web
def test_commands_to_type_are_recognizable() -> None:
    analysis = engine.analyze(busy(), CATALOG)
    remedies = ("Look: `iostat -x 1`, <b>now</b>.", "An odd ` is kept.")
    finding = msgspec.structs.replace(analysis.findings[0], remedies=remedies)
    builder = Builder()
    builder.add(msgspec.structs.replace(analysis, findings=(finding,)), Entry("a"))
    page = builder.render(assets.load()).decode()
    assert "Look: <code>iostat -x 1</code>, &lt;b&gt;now&lt;/b&gt;." in page
    assert "An odd ` is kept." in page


@needs_web
def test_a_statement_that_has_ended_is_called_so() -> None:
    capture = busy()
    first, *others = capture.threads
    for command, said in (("Query", False), ("Sleep", True)):
        idle = msgspec.structs.replace(first, command=command)
        page = rendered(msgspec.structs.replace(capture, threads=(idle, *others)))
        assert (b"Its last statement (ended)" in page) is said


@needs_web
def test_file_is_its_owners_and_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = saved(busy(), tmp_path / "a.jsonl.zst"), tmp_path / "a.html"
    assert run(path, "-o", out) == Exit.PARTIAL  # the capture says that a thread was lost
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    said = capsys.readouterr().out.splitlines()
    assert "[table-open-lock]" in said[0]
    assert said[1].startswith(f"{out}: 1 capture, ")
    before = out.read_bytes()
    assert run(path, "-o", out) == Exit.FAILED
    assert "--force" in capsys.readouterr().err
    assert run(path, "-o", out, "--force") == Exit.PARTIAL
    assert out.read_bytes() == before, "the same captures make the same page"


@needs_web
@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["a", "b", "c", "--compare"], Exit.USAGE, "--compare takes two captures"),
        (["nothing-there"], Exit.FAILED, "nothing-there"),
        (
            ["20261121T145012.345Z-mysqld-1"],
            Exit.USAGE,
            "no incident 20261121T145012.345Z-mysqld-1",
        ),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words, "--dest", tmp_path, "-o", tmp_path / "x.html") == code
    said = capsys.readouterr().err
    assert error in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def test_output_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a") == Exit.USAGE
    assert "-o/--output" in capsys.readouterr().err


@needs_web
def test_incident_by_its_id_and_its_folder(tmp_path: Path) -> None:
    folder = store_incident(tmp_path / "store", [busy(), busy(30)])
    by_id, by_folder = tmp_path / "id.html", tmp_path / "folder.html"
    assert run(folder.name, "--dest", tmp_path / "store", "-o", by_id) == Exit.PARTIAL
    assert run(folder, "-o", by_folder) == Exit.PARTIAL  # a capture says that a thread was lost
    assert by_id.read_bytes() == by_folder.read_bytes()
    data = value(by_id.read_bytes())
    assert data["kind"] == "incident"
    assert data["main"] == 1
    assert [item["name"] for item in data["fired"]] == ["threads-running"]


@needs_web
def test_incident_with_a_torn_capture_is_done_in_part(tmp_path: Path) -> None:
    folder = store_incident(tmp_path / "store", [busy(), busy()])
    torn = folder / "captures" / "0001.jsonl.zst"
    os.truncate(torn, 100)
    assert run(folder, "-o", tmp_path / "x.html") == Exit.PARTIAL
    page = (tmp_path / "x.html").read_text("utf-8")
    assert "0001.jsonl.zst" in page
    os.truncate(folder / "captures" / "0002.jsonl.zst", 100)
    assert run(folder, "-o", tmp_path / "y.html") == Exit.FAILED


def test_without_its_script_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STALLSCOPE_WEB", str(tmp_path))
    path = saved(busy(), tmp_path / "a.jsonl.zst")
    assert run(path, "-o", tmp_path / "a.html") == Exit.FAILED
    assert "run ./scripts/setup" in capsys.readouterr().err


@needs_web
def test_deep_stacks_lose_their_middle() -> None:
    frames = tuple(Frame(symbol=f"f{i}") for i in range(5000))
    capture = msgspec.structs.replace(busy(), threads=(Thread(1, frames, state="R", on_cpu=True),))
    data = value(rendered(capture))
    names = [data["texts"][data["names"][name][0]] for name in data["stacks"][0]]
    assert len(names) == 256
    assert (names[0], names[-1]) == ("f0", "f4999")

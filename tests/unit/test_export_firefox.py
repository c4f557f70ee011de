# SPDX-License-Identifier: Apache-2.0
"""The Firefox profile, as the profiler's own code reads it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stallscope.reporters.export import firefox
from stallscope.reporters.export.source import Entry, Options
from tests.needs import FIREFOX_PROFILER
from tests.support.servers import PATIENCE
from tests.unit.exports import counted, dumps, entry, hostile, series, total

SESSION = "stallscope"


def profile(entries: Sequence[Entry]) -> dict[str, Any]:
    value = json.loads(b"".join(firefox.render(entries, Options())))
    assert isinstance(value, dict)
    return value


def functions(samples: dict[str, Any]) -> dict[str, int]:
    """Return the samples of each function, whose names begin with their library's."""
    return {
        item["name"].rpartition("!")[2]: item["totalSamples"]
        for item in samples["topFunctionsByTotal"]
    }


class Profiler:
    """The profiler's command line: a server of it holds the profile, which questions are put to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PROFILER_CLI_SESSION_DIR": str(folder / "sessions"),
            "PROFILER_CLI_NO_SYMBOLICATE": "1",
        }
        self._server: subprocess.Popen[bytes] | None = None

    def load(self, entries: Sequence[Entry]) -> None:
        """Start the server, which its own `load` gives half a second to appear."""
        path = self._folder / "stall.json"
        path.write_bytes(b"".join(firefox.render(entries, Options(kernel=True))))
        log = (self._folder / "log").open("wb")
        with log:
            self._server = subprocess.Popen(
                ["node", str(FIREFOX_PROFILER), "--daemon", str(path), "--session", SESSION],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # Asking starts a node each time, which would keep the server itself from starting.
        sessions = self._folder / "sessions"
        self._wait(lambda: sessions.is_dir() and any(sessions.iterdir()))
        self._wait(self._is_loaded)

    def _is_loaded(self) -> bool:
        done = self._run("status")
        return done.returncode == 0 and "oading" not in done.stdout

    def _wait(self, ready: Callable[[], bool]) -> None:
        assert self._server is not None
        deadline = time.monotonic() + PATIENCE
        while not ready():
            log = (self._folder / "log").read_text()
            assert self._server.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.1)

    def __call__(self, *words: str) -> str:
        done = self._run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, *words: str) -> dict[str, Any]:
        answer = json.loads(self(*words, "--json"))
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["node", str(FIREFOX_PROFILER), *words, "--session", SESSION],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture
def profiler(tmp_path: Path) -> Iterator[Profiler]:
    made = Profiler(tmp_path)
    yield made
    made.close()


@pytest.mark.needs("firefox-profiler")
@pytest.mark.large
class TestInTheProfilerItself:
    def test_threads_samples_and_markers(self, profiler: Profiler) -> None:
        profiler.load(series(3))
        info = profiler.ask("profile", "info", "--all")
        threads = {t["tid"]: t for p in info["processes"] for t in p["threads"]}
        assert sorted(threads) == [100, 101, 102, 103, 104, 900]
        assert {process["name"] for process in info["processes"]} == {"mysqld"}

        waiter = threads[101]["threadHandle"]
        samples = profiler.ask("thread", "samples", "--include-idle", "--thread", waiter)
        found = functions(samples)
        assert found["open_table"] == found["__lll_lock_wait"] == found["futex_wait_queue"] == 3
        assert samples["categoryBreakdown"]["categories"][0]["name"] == "kernel"

        marks = profiler.ask("thread", "markers", "--thread", waiter)["byType"]
        assert [(mark["markerName"], mark["count"]) for mark in marks] == [("Wait", 1)]
        assert marks[0]["topMarkers"][0]["label"] == "LOCK_open"
        assert marks[0]["topMarkers"][0]["duration"] == pytest.approx(2000)
        marks = profiler.ask("thread", "markers", "--thread", threads[100]["threadHandle"])[
            "byType"
        ]
        assert [(mark["markerName"], mark["count"]) for mark in marks] == [("Capture", 3)]

    def test_counted_threads_are_weights(self, profiler: Profiler) -> None:
        profiler.load([counted()])
        info = profiler.ask("profile", "info", "--all")
        samples = profiler.ask("thread", "samples", "--include-idle", "--thread", "t-0")
        found = functions(samples)
        assert info["threadCount"] == 1
        assert found["a"] == 21
        assert found["c"] == 17
        assert found["poll"] == 1_000_000

    def test_dumps_of_real_servers(self, profiler: Profiler) -> None:
        profiler.load(dumps())
        info = profiler.ask("profile", "info", "--all")
        assert info["threadCount"] > 100

    def test_hostile_names(self, profiler: Profiler) -> None:
        text = "\x1b[31m<script>\ud800\n"
        profiler.load([entry(hostile(text))])
        said = profiler("thread", "list") + profiler("thread", "samples", "--thread", "t-0")
        assert "<script>" in said
        assert "\x1b" not in said


@pytest.mark.parametrize("entries", [series(3), list(dumps()), [counted()]])
def test_total(entries: list[Entry]) -> None:
    weights = [thread["samples"]["weight"] for thread in profile(entries)["threads"]]
    assert sum(sum(of_thread) for of_thread in weights) == total(entries)


def test_tables_agree() -> None:
    """Each index lies in the table that it is of, and each column is as long as its table."""
    value = profile(list(dumps()))
    shared = value["shared"]
    for name, table in shared.items():
        if name != "stringArray":
            assert {len(column) for key, column in table.items() if key != "length"} <= {
                table["length"]
            }
    stacks, frames, functions = (shared[f"{name}Table"] for name in ("stack", "frame", "func"))
    for number, (frame, offset) in enumerate(
        zip(stacks["frame"], stacks["prefixOffset"], strict=True)
    ):
        assert 0 <= offset <= number
        assert frame < frames["length"]
    assert max(frames["func"]) < functions["length"]
    assert max(frames["lib"]) < len(value["libs"])
    assert max(frames["category"]) < len(value["meta"]["categories"])
    assert max(functions["name"]) < len(shared["stringArray"])
    assert max(source for source in functions["source"] if source is not None) < len(
        shared["sources"]["filename"]
    )
    for thread in value["threads"]:
        times = thread["samples"]["time"]
        assert times == sorted(times)
        assert max(thread["samples"]["stack"]) < stacks["length"]


def test_build_ids_are_breakpads() -> None:
    # As samply has it: the first three parts of a GUID are little-endian, and an age follows.
    libraries = profile(series(1))["libs"]
    assert libraries[0]["name"] == "mysqld"
    assert libraries[0]["codeId"] == "0123456789abcdef"
    assert libraries[0]["breakpadId"] == "67452301AB89EFCD00000000000000000"

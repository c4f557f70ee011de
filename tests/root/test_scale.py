# SPDX-License-Identifier: Apache-2.0
"""Very many threads: all of them, in bounded time and memory, or a note that names the limit."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Label
from tests.bench.endurance_scale import limits_raised, wrong_stacks
from tests.bench.overhead_load import cpu_seconds
from tests.root.support import assert_frames, assert_unharmed, snap
from tests.support.known_waits import known_waits
from tests.support.servers import PATIENCE
from tests.support.targets import Target
from tests.support.usage import process_tree, pss_mb
from tests.support.watching import watcher

__all__: list[str] = []

MANY = 20_000
DEPTH = 25
PATIENT = str(round(1000 * PATIENCE))
"""Milliseconds: on a busy machine the time that is allowed by default is soon over."""
SMALL_STACK = ("--stack", "16384")
"""Stacks side by side in one mapping, as where a program gives threads their memory."""
AT_REST = (
    "--watch",
    "--at-rest",
    "--history",
    "--events",
    "--interval",
    "1000",
    "--threshold",
    "500",
)
REST_SECONDS = 10.0

# A process begins with the memory of who forked it, which is large here: one that is small asks.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def measured(pid: int, file: Path, *options: str) -> tuple[Capture, float]:
    """Capture a process; return the capture, and the most memory that took, in MiB."""
    argv = [str(probe.find()), "snap", "--pid", str(pid), "--output", str(file), *options]
    done = subprocess.run(
        [sys.executable, "-S", "-c", MEASURE, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode in (0, 3)
    return capturefile.read(file), int(done.stdout.split()[-1]) / 1024


@pytest.mark.nightly
@pytest.mark.needs("root", "bpf")
def test_twenty_thousand_threads(tmp_path: Path) -> None:
    with (
        limits_raised(MANY),
        Target("threads", str(MANY), str(DEPTH), *SMALL_STACK) as target,
    ):
        capture, memory = measured(
            target.pid, tmp_path / "all.jsonl", "--backend", "bpf", "--deadline", PATIENT
        )
        assert_frames(capture, target.threads, "target-threads")
        labels = {thread.tid: thread.label for thread in capture.threads}
        assert {labels[fact.tid] for fact in target.threads} == {Label.VERIFIED}
        assert memory < 512
        assert capture.processes[0].threads_lost == 0
        assert_unharmed(target.pid)


@pytest.mark.needs("root", "probe")
def test_stacks_side_by_side_are_copied_without_their_neighbours(tmp_path: Path) -> None:
    """Of 16 KiB no more is there: 128 KiB of each would be 250 MiB."""
    with Target("threads", "2000", str(DEPTH), *SMALL_STACK) as target:
        capture, memory = measured(
            target.pid, tmp_path / "proc.jsonl", "--backend", "proc", "--deadline", PATIENT
        )
        assert_frames(capture, target.threads, "target-threads")
        assert not wrong_stacks(capture, target.threads)
        known = {fact.tid for fact in target.threads}
        assert not [
            thread
            for thread in capture.threads
            if thread.tid in known and thread.label is Label.TRUNCATED
        ]
        assert memory < 120


@pytest.mark.needs("root", "probe")
def test_what_the_deadline_leaves_out_is_said() -> None:
    with Target("threads", "3000", str(DEPTH)) as target:
        taken = snap(target.pid, "--deadline", "20", backend="proc", seconds=PATIENCE)
        assert taken.code == 3
        capture = taken.whole
        # The first ones in any case.
        assert 256 <= len(capture.threads) < len(target.threads)
        (process,) = capture.processes
        # The heartbeat is one more.
        assert len(capture.threads) + (process.threads_lost or 0) == len(target.threads) + 1
        (note,) = [note for note in capture.notes if note.code == "deadline"]
        assert f"{process.threads_lost} threads were not read" in note.message
        assert "--deadline" in note.message
        assert not wrong_stacks(capture, target.threads)
        assert_unharmed(target.pid)


@pytest.mark.nightly
@pytest.mark.needs("root", "bpf")
def test_a_probe_at_rest_keeps_nothing_of_each_thread(tmp_path: Path) -> None:
    options = ("--backend", "bpf", "--deadline", PATIENT)
    with (
        Target("threads", "10000", "5", *SMALL_STACK) as target,
        watcher(target.pid, options=options) as serving,
    ):
        for number in range(2):
            # Pages of copied stacks: at least one for each thread, and 4 MiB are kept.
            assert pss_mb(process_tree(serving.pid), "Pss_Shmem") < 16
            # Records of the threads: 7 MiB.
            assert pss_mb(process_tree(serving.pid), "Pss_Anon") < 12
            file = tmp_path / f"{number}.jsonl"
            serving.ask(f"snap {file}", "written")
            assert_frames(capturefile.read(file), target.threads, "target-threads")
        assert_unharmed(target.pid)


@pytest.mark.nightly
@pytest.mark.needs("root", "waits")
def test_twenty_thousand_threads_at_rest(tmp_path: Path) -> None:
    """The polls become less frequent, say so, and leave no thread out."""
    with (
        limits_raised(MANY),
        known_waits(tmp_path, idle=MANY, calm=True) as target,
        watcher(target.pid, options=AT_REST) as watch,
    ):
        first = watch.line(lambda line: bool(line.get("history")), "line with a sample")
        sample = first["history"][0]
        assert sum(row["count"] for row in sample["rows"]) == sample["threads"] > MANY
        own, begun = process_tree(watch.pid), time.monotonic()
        used, at = cpu_seconds(own), len(watch.lines)
        line = watch.line(
            lambda line: "rest" in line and time.monotonic() > begun + REST_SECONDS,
            "later line",
            start=at,
        )
        share = (cpu_seconds(own) - used) / (time.monotonic() - begun)
        assert line["rest"]["resting"]
        assert line["rest"]["threads"] == sample["threads"]
        assert line["rest"]["interval_ms"] > 1000
        # 0.4 % are allowed in the long run. On a busy machine one pass can take several times as
        # long as those before; three a second, as of few threads, would take 5 % and more.
        assert share < 0.03
        # Not even for a moment were the threads taken for waiting ones.
        assert not watch.events()
        assert not line["rest"]["arms"]
        assert_unharmed(target.pid)

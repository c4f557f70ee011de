# SPDX-License-Identifier: Apache-2.0
"""A burst: later captures hold what changed, all of it, and samples show what ran in between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Label
from tests.root.support import (
    assert_frames,
    assert_unharmed,
    by_tid,
    own_frames,
    run_probe,
    snap,
    without_plt,
)
from tests.support.servers import PATIENCE
from tests.support.servers.waiting import wait_until
from tests.support.serving import ask, serving
from tests.support.targets import Target

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "bpf")

BURST = ("--burst", "10", "--burst-interval", "20")
LONG = ("--burst", "1000", "--burst-interval", "20")


def check_burst(capture: Capture) -> None:
    """Check that it has enough captures, or says that they took long: others want the CPUs too."""
    assert capture.burst is not None
    assert capture.burst.taken == len(capture.moments) >= min(3, capture.burst.wanted)
    if capture.burst.taken < capture.burst.wanted:
        assert capture.burst.ended == "the captures took too long"


@pytest.mark.kernels("bpf")
def test_each_capture_has_all_stacks_and_says_what_did_not_change() -> None:
    with Target("threads", "200", "25") as target:
        taken = snap(target.pid, *BURST)
        capture = taken.whole
        assert taken.code == 0, capture.notes
        check_burst(capture)
        assert [moment.moment for moment in capture.moments] == list(range(len(capture.moments)))
        for before, moment in zip(capture.moments, capture.later, strict=False):
            assert_frames(moment, target.threads, "target-threads")
            assert moment.unchanged >= len(target.threads)
            known = by_tid(before)
            same = sum(known[thread.tid] is thread for thread in moment.threads)
            assert same == moment.unchanged
            labels = {thread.tid: thread.label for thread in moment.threads}
            assert {labels[fact.tid] for fact in target.threads} == {Label.VERIFIED}
        # Nobody ran but the heartbeat, and what the samples saw is not counted: on a busy machine
        # two captures are far apart.
        whole, *later = [
            sum(line.startswith(b'{"type":"thread"') for line in part)
            for part in _captures(taken.stdout)
        ]
        assert whole > 200
        assert max(later) < whole / 20
        assert_unharmed(target.pid)
        assert target.beats_on()


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "kill"])
def test_an_interrupted_burst_is_kept(tmp_path: Path, whole_group: bool) -> None:
    """Ctrl-C in a terminal is for all of a process group; a signal is for stallscope alone."""
    file = tmp_path / "c.jsonl"
    words = ["snap", "--for", "600", "--interval", "1000", "--no-sql", "-o", str(file)]
    with Target("threads", "20", "5") as target:
        argv = [sys.executable, "-P", "-m", "stallscope", *words, "-p", str(target.pid)]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, start_new_session=True) as process:
            wait_until(lambda: blocks_signals(process.pid), "the burst")
            if whole_group:
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        assert_unharmed(target.pid)
    assert process.returncode in (0, 3), err
    capture = capturefile.read(file)
    assert capture.burst is not None
    assert 1 <= capture.burst.taken < capture.burst.wanted
    assert capture.burst.ended == "it was interrupted"


def blocks_signals(parent: int) -> bool:
    """Return whether the probe has a capture, and waits for the next one or for a signal."""
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            mask = int(status.partition("SigBlk:")[2].split()[0], 16)
            if "Name:\tstallscope-prob" in status and mask >> (signal.SIGINT - 1) & 1:
                return True
    return False


def test_a_backend_that_cannot_say_what_ran_takes_each_capture_whole() -> None:
    with Target("threads", "20", "5") as target:
        capture = snap(target.pid, *BURST, backend="proc").whole
        check_burst(capture)
        assert {moment.moment for moment in capture.moments} == {0}
        for moment in capture.moments:
            assert_frames(moment, target.threads, "target-threads")


@pytest.mark.needs("ptrace")
def test_a_backend_that_stops_threads_takes_one_capture() -> None:
    with Target("threads", "5", "5") as target:
        capture = snap(target.pid, *BURST, backend="ptrace").whole
        assert not capture.later
        assert capture.burst is not None
        assert "stops threads" in (capture.burst.ended or "")


@pytest.mark.kernels("bpf")
def test_what_runs_is_sampled_with_its_stack() -> None:
    with Target("spin", "user", "syscall") as target:
        capture = snap(target.pid, "--burst", "50", "--burst-interval", "20").whole
        spinners = {fact.tid: fact for fact in target.threads if fact.spin}
        assert len(spinners) == 2
        counts = dict.fromkeys(spinners, 0)
        for moment in capture.later:
            assert moment.sample_period_ns
            assert moment.sample_cpus
            for sample in moment.samples:
                if sample.tid not in spinners:
                    continue
                counts[sample.tid] += sample.count
                names = [name for name in map(str, sample.frames) if name.startswith("spin_")]
                assert names[:1] == [f"spin_{spinners[sample.tid].spin}"], sample
                assert sample.label is Label.RUNNING
        # 1 s, a thousand times a second for each CPU; others may want the CPUs as well.
        assert min(counts.values()) > 10, counts
        assert_unharmed(target.pid)


def is_one_chain(names: list[str]) -> bool:
    """Return whether the frames are one unbroken way down from the thread's start."""
    if not names or names[-1] != "flip_main":
        return False
    names = names[-2::-1]
    for chain in ("heads", "tails"):
        whole = [f"{chain}_{nr}" for nr in range(10)] + [f"{chain}_end"]
        if names == whole[: len(names)]:
            return True
    return False


def test_no_exact_stack_of_a_burst_is_wrong() -> None:
    """The threads sleep for longer than the interval, and shorter, in two chains of frames."""
    for nap_ns in ("60000000", "1000000"):
        with Target("flip", "8", nap_ns) as target:
            tids = {fact.tid for fact in target.facts}
            right = unchanged = 0
            capture = snap(target.pid, "--burst", "40", "--burst-interval", "10").whole
            for before, moment in zip(capture.moments, capture.later, strict=False):
                known = by_tid(before)
                for thread in moment.threads:
                    if thread.tid not in tids:
                        continue
                    names = without_plt(own_frames(thread, "target-flip"))
                    if thread.label is Label.VERIFIED:
                        assert is_one_chain(names), thread
                        right += 1
                    unchanged += known.get(thread.tid) is thread
            assert right > 50
            if nap_ns == "60000000":
                assert unchanged > right / 2


def test_a_lock_that_is_passed_on_has_its_owner_of_each_moment() -> None:
    with Target("storm", "4", "2000000", "1000") as target:
        running = threading.Thread(target=target.ask, args=("run 3000",))
        running.start()
        capture = snap(target.pid, "--burst", "30", "--burst-interval", "30").whole
        running.join()
        owners = {
            lock.owner_tid
            for moment in capture.moments
            for lock in moment.locks
            if lock.symbol == "storm_mutex"
        }
        assert len(owners - {None}) > 1, owners
        for moment in capture.moments:
            assert all(t.lock is None or t.lock < len(moment.locks) for t in moment.threads)


def test_threads_come_and_go() -> None:
    # Five at a time, and none of them lives from one capture to the next.
    with Target("churn", "1000", "20", "5000") as target:
        stay = [fact for fact in target.threads if fact.tid]
        assert stay
        capture = snap(target.pid, *BURST).whole
        check_burst(capture)
        for moment in capture.moments:
            assert_frames(moment, stay, "target-churn")
            tids = [thread.tid for thread in moment.threads]
            assert len(set(tids)) == len(tids)
        assert any(moment.ended for moment in capture.later)
        assert_unharmed(target.pid)


def test_a_process_that_ends_ends_the_burst() -> None:
    with _burst_of("threads", "50", "10", options=LONG) as (target, process):
        assert process.stdout is not None
        data = b""
        ends = 0
        for line in process.stdout:
            data += line
            ends += line.startswith(b'{"type":"end"')
            if ends == 3:
                break
        facts = target.threads
        target.close()
        data += process.stdout.read()
        assert process.wait(PATIENCE) in (0, 3)
        capture = capturefile.loads(data, "burst")
        assert capture.burst is not None
        assert capture.burst.taken == len(capture.moments) >= 3
        assert "has ended" in (capture.burst.ended or "")
        for moment in capture.moments[:3]:
            assert_frames(moment, facts, "target-threads")


def test_a_deadline_before_its_end_is_said() -> None:
    with Target("threads", "5", "5") as target:
        taken = run_probe(
            *("snap", "--pid", str(target.pid), "--backend", "bpf"), *LONG, "--deadline", "300"
        )
        assert taken.whole.burst is not None
        assert taken.whole.burst.ended == "the deadline was reached"
        assert 1 < taken.whole.burst.taken < 100
        assert taken.seconds < PATIENCE / 2


def test_a_serving_probe_answers_during_a_burst(tmp_path: Path) -> None:
    with (
        Target("threads", "5", "5") as target,
        serving(target.pid, "bpf", *LONG) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        long, one = tmp_path / "long.jsonl", tmp_path / "one.jsonl"
        process.stdin.write(f"burst {long}\n".encode())
        process.stdin.flush()
        # Another capture ends the burst, with what it has.
        answers = [json.loads(line) for line in ask(process, f"snap {one}")]
        if len(answers) == 1:
            answers.append(json.loads(process.stdout.readline()))
        assert [(a["type"], a["path"]) for a in answers] == [
            ("written", str(long)),
            ("written", str(one)),
        ]
        burst = capturefile.read(long)
        assert burst.burst is not None
        assert burst.burst.taken < burst.burst.wanted
        for file in (long, one):
            assert_frames(capturefile.read(file), target.threads, "target-threads")
        assert (long.stat().st_mode & 0o777) == 0o600


def test_a_torn_burst_is_no_capture(tmp_path: Path) -> None:
    with Target("threads", "5", "5") as target:
        data = snap(target.pid, *BURST).stdout
    lines = data.splitlines(keepends=True)
    with pytest.raises(capturefile.CaptureFileError, match="torn"):
        capturefile.loads(b"".join(lines[:-1]), "torn")
    with pytest.raises(capturefile.CaptureFileError, match="after the end"):
        capturefile.loads(data + lines[0], "more")
    whole = capturefile.loads(data, "whole")
    file = tmp_path / "again.jsonl.zst"
    capturefile.write(whole, file)
    again = capturefile.read(file)
    for one, other in zip(whole.moments, again.moments, strict=True):
        assert one.threads == other.threads
        assert one.locks == other.locks
        assert one.samples == other.samples
        assert one.unchanged == other.unchanged


def _captures(data: bytes) -> list[list[bytes]]:
    """Return the records of each capture of a burst."""
    found: list[list[bytes]] = []
    for line in data.splitlines():
        if line.startswith(b'{"type":"capture"'):
            found.append([])
        found[-1].append(line)
    return found


@contextmanager
def _burst_of(
    *target_words: str, options: tuple[str, ...]
) -> Iterator[tuple[Target, subprocess.Popen[bytes]]]:
    name, *words = target_words
    with Target(name, *words) as target:
        argv = [str(probe.find()), "snap", "--pid", str(target.pid), "--backend", "bpf", *options]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            try:
                yield target, process
            finally:
                process.kill()

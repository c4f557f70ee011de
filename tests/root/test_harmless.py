# SPDX-License-Identifier: Apache-2.0
"""A capture leaves the target as it was, whatever happens to the probe."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from itertools import islice
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model.capture import Label
from tests.root.support import BACKENDS, assert_frames, assert_unharmed, run_probe, snap
from tests.support import kills
from tests.support.chance import SEED
from tests.support.servers import PATIENCE, wait_until
from tests.support.serving import ask, ask_snap, serving
from tests.support.targets import Target

__all__: list[str] = []

COUNTS = [6, pytest.param(150, marks=pytest.mark.nightly)]
"""How many running probes are killed; fewer in an emulated machine, which is slow."""
if kills.IN_GUEST:
    COUNTS = [2]
# Those that never stop a thread.
GENTLE = BACKENDS[:2]


@pytest.mark.small
@pytest.mark.parametrize("backend", GENTLE)
def test_no_system_call_is_interrupted(backend: str) -> None:
    """50 threads in epoll_wait and semop would all see it (signal(7)) if they were stopped."""
    with Target("eintr", "25") as target:
        for _ in range(5):
            capture = snap(target.pid, backend=backend).whole
            assert len(capture.threads) == len(target.threads) + 1
            assert capture.stopped_ns == 0
            assert {thread.stopped_ns for thread in capture.threads} == {0}
        target.wait_asleep()
        assert target.ask("eintr") == {
            "threads": dict.fromkeys(
                ("epoll_wait", "semop", "poll", "nanosleep", "read", "recv"), 0
            ),
            "times": 0,
        }


@pytest.mark.needs("root", "ptrace")
def test_the_test_sees_what_ptrace_does() -> None:
    """The count above can fail: stopping those threads interrupts exactly the 50."""
    with Target("eintr", "25") as target:
        capture = snap(target.pid, backend="ptrace").whole
        assert capture.stopped_ns > 0
        target.wait_asleep()
        seen = target.ask("eintr")["threads"]
        assert (seen["epoll_wait"], seen["semop"]) == (25, 25)


@pytest.mark.needs("root", "ptrace")
def test_ptrace_leaves_interruptible_calls_alone_unless_asked() -> None:
    with Target("eintr", "5") as target:
        taken = run_probe("snap", "--pid", str(target.pid), "--backend", "ptrace")
        threads = {thread.tid: thread for thread in taken.whole.threads}
        for fact in target.threads:
            if fact.wait in ("read", "recv"):
                assert threads[fact.tid].stopped_ns == 0, fact.wait
        target.wait_asleep()
        assert target.ask("eintr")["times"] == 0


@pytest.mark.small
@pytest.mark.needs("root", "bpf")
def test_auto_does_not_stop_threads() -> None:
    with Target("eintr", "5") as target:
        capture = snap(target.pid, backend="auto").whole
        assert capture.backend == "bpf"
        assert capture.backend_reason
        target.wait_asleep()
        assert target.ask("eintr")["times"] == 0


@pytest.mark.needs("root", "ptrace")
def test_stopped_time_is_measured() -> None:
    with Target("threads", "36", "25") as target:
        capture = snap(target.pid, backend="ptrace").whole
        stopped = [t.stopped_ns for t in capture.threads if t.label is Label.VERIFIED]
        assert len(stopped) >= 36
        assert min(stopped) > 0
        assert max(stopped) == capture.stopped_ns
        assert capture.elapsed_ns is not None
        assert capture.stopped_ns < capture.elapsed_ns


@pytest.mark.parametrize("backend", BACKENDS)
def test_signals_arrive_during_captures(backend: str) -> None:
    """Queued signals: the kernel counts each, so one that is swallowed is missed."""
    with Target("signals", "16") as target:
        sent = 0
        for _ in range(10):
            with subprocess.Popen(
                [
                    *(str(probe.find()), "snap", "--pid", str(target.pid)),
                    *("--backend", backend, "--stop-blocked-reads"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            ) as process:
                while process.poll() is None:
                    # Not more than the queue holds, RLIMIT_SIGPENDING.
                    os.kill(target.pid, signal.SIGRTMIN)
                    sent += 1
                    time.sleep(0.0005)
                assert process.returncode in (0, 3)
        assert sent > 10
        wait_until(lambda: target.ask("signals")["signals"] == sent, f"{sent} signals")
        assert_unharmed(target.pid)


NEEDS = {
    "bpf": ("root", "bpf", "waits"),
    "proc": ("root", "probe"),
    "ptrace": ("root", "ptrace"),
    "inproc": ("root", "library"),
}
"""Of a way of running the probe, by its backend."""


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(
            way,
            id=way.id,
            marks=[
                pytest.mark.needs(*NEEDS[backend]),
                *([pytest.mark.kernels("killed")] if way.id in ("snap-bpf", "snap-proc") else []),
            ],
        )
        for way in kills.WAYS
        for backend in NEEDS
        if way.id.endswith(f"-{backend}")
    ],
)
@pytest.mark.parametrize("count", COUNTS)
def test_probe_killed_at_any_moment(way: kills.Way, count: int) -> None:
    rng = random.Random(SEED)
    with kills.victims(way) as victims:
        # Where the machine becomes faster, a probe ends before its kill: that counts for nothing.
        hits = filter(None, kills.kill_many(victims, 50 * count, rng))
        assert sum(islice(hits, count)) == count
        # What runs on is still what it was.
        victims.capture_right()
        assert way.stops or victims.interrupted() == 0


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("backend", GENTLE)
def test_serving_probe_keeps_nothing_of_each_capture(backend: str) -> None:
    with Target("threads", "36", "25") as target, serving(target.pid, backend) as process:
        assert_frames(ask_snap(process), target.threads, "target-threads")
        files = open_files(process.pid)
        for _ in range(20):
            assert_frames(ask_snap(process), target.threads, "target-threads")
        assert open_files(process.pid) == files
    assert process.returncode == 0


@pytest.mark.needs("root", "bpf")
def test_serving_probe_outlives_its_worker_and_says_so(tmp_path: Path) -> None:
    with Target("threads", "18", "25") as target, serving(target.pid, "bpf") as process:
        ask_snap(process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        taken = [ask_snap(process), ask_snap(process)]
        assert_frames(taken[-1], target.threads, "target-threads")
        file = tmp_path / "one.jsonl"
        (written,) = ask(process, f"snap {file}")
        assert json.loads(written)["type"] == "written"
        assert file.stat().st_mode & 0o777 == 0o600
        assert json.loads(ask(process, "nonsense")[0])["type"] == "error"
        assert json.loads(ask(process, f"snap {tmp_path}/none/x")[0])["type"] == "error"
        assert_frames(ask_snap(process), target.threads, "target-threads")


@pytest.mark.needs("root", "bpf")
def test_a_process_that_has_ended_is_left_out_of_several() -> None:
    """Connections of PostgreSQL come and go between the list and the probe."""
    with Target("eintr", "1") as ended:
        pass
    with (
        Target("eintr", "1") as target,
        serving(target.pid, "bpf", "--pid", str(ended.pid)) as process,
    ):
        assert [one.pid for one in ask_snap(process).processes] == [target.pid]
    done = subprocess.run(
        [str(probe.find()), "serve", "--pid", str(ended.pid), "--pid", str(target.pid)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("stallscope-probe: no process ")


@pytest.mark.needs("root", "bpf")
def test_serving_probe_ends_with_its_target() -> None:
    with Target("exiter") as target, serving(target.pid, "bpf") as process:
        ask_snap(process)
        target.send("exit")
        assert target.wait() == 0
        assert process.wait(PATIENCE) == 1

# SPDX-License-Identifier: Apache-2.0
"""Kill stallscope-probe while it stops threads, and see whether the target goes on."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time

from targets import Target, trouble_left

from stallscope import capturefile, probe

__all__ = ["KillError", "Moments", "kill_once", "measure"]


class KillError(Exception):
    """A killed probe left something behind."""


class Moments:
    """When to kill: half of the moments lie anywhere, half in the time when threads are stopped."""

    def __init__(self, whole: float, begin: float, end: float) -> None:
        self.whole, self.begin, self.end = whole, begin, end

    def choose(self, rng: random.Random) -> float:
        """Return seconds after the start of the probe."""
        if rng.random() < 0.5:
            return rng.uniform(0, self.whole)
        return rng.uniform(self.begin, self.end)


def command(pid: int) -> list[str]:
    argv = [str(probe.find()), "snap", "--pid", str(pid), "--backend", "ptrace"]
    return [*argv, "--stop-blocked-reads"]


def measure(pid: int) -> Moments:
    """Let some captures end, to learn when one does what; the fastest is what is gone by."""
    return min((measure_once(pid) for _ in range(5)), key=lambda moments: moments.whole)


def measure_once(pid: int) -> Moments:
    started_ns, start = time.time_ns(), time.monotonic()
    done = subprocess.run(command(pid), capture_output=True, check=True)
    whole = time.monotonic() - start
    capture = capturefile.loads(done.stdout, "kills")
    assert capture.time_ns is not None
    begin = (capture.time_ns - started_ns) / 1e9
    stopping = (capture.phases["attach_ns"] + capture.phases["snapshot_ns"]) / 1e9
    return Moments(whole, begin, begin + stopping)


def kill_once(target: Target, after: float) -> bool:
    """Kill a probe that long after its start; say whether it was still running.

    Raises KillError where a thread stays stopped or traced, or the target does not answer.
    """
    with subprocess.Popen(
        command(target.pid),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after)
        running = process.poll() is None
        process.kill()
    if left := trouble_left(target.pid):
        raise KillError(f"killed after {1000 * after:.2f} ms, left behind: {left[:3]}")
    if not target.running() or not target.beats_on():
        raise KillError(f"killed after {1000 * after:.2f} ms: the target is gone")
    return running

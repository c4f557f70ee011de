# SPDX-License-Identifier: Apache-2.0
"""How long a calibration takes, and the check of one that is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from stallscope.collectors.calibration import layouts
from tests.bench.stats import BenchError

__all__ = ["calibrated", "checked"]

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0


def calibrated(pid: int) -> tuple[float, dict[str, int]]:
    """Return the seconds of the whole command, and the layout that it found."""
    begun = time.monotonic()
    done = _run("stallscope", "calibrate", "-p", str(pid), "--json")
    seconds = time.monotonic() - begun
    if done.returncode != 0:
        raise BenchError(f"calibrate ended with {done.returncode}: {done.stderr.strip()}")
    layout: dict[str, int] = json.loads(done.stdout)["layout"]
    return seconds, layout


def checked(pid: int, count: int) -> list[float]:
    """Return the milliseconds in which a kept calibration is found, and tried on the process: of
    another program, as the threads of this one keep the interpreter busy."""
    done = _run("tests.bench.introspection_times", str(pid), str(count))
    if done.returncode != 0:
        raise BenchError(f"the check of a calibration failed: {done.stderr[-500:]}")
    found: list[float] = json.loads(done.stdout)
    return found


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the checkout."""
    return subprocess.run(
        [sys.executable, "-P", "-m", *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _checks(pid: int, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begun = time.monotonic()
        found = layouts.of_process(pid, checked=True)
        times.append((time.monotonic() - begun) * 1000)
        if found.reason is not None:
            raise BenchError(f"the calibration that was kept does not fit: {found.reason}")
    return times


if __name__ == "__main__":
    print(json.dumps(_checks(*map(int, sys.argv[1:]))))

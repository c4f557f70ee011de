# SPDX-License-Identifier: Apache-2.0
"""Bursts by ``stallscope snap``, as a user takes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench.stats import BenchError

__all__ = ["PLACE", "STOOD_BY", "command", "run", "snap", "verdict_of"]

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
STOOD_BY = 0.5
"""Confidence from which on a finding is more than a hint: docs/verdict.md."""


PLACE: dict[str, Any] = {
    "cwd": CHECKOUT,
    "env": {"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
}
"""Where the command runs."""


def command(pid: int, *options: str) -> list[str]:
    """Return the command line of ``snap``."""
    return [sys.executable, "-P", "-m", "stallscope", "snap", "-p", str(pid), *options]


def snap(pid: int, *options: str) -> dict[str, Any]:
    """Return what ``snap --json`` prints."""
    found: dict[str, Any] = json.loads(run(pid, "--json", *options))
    return found


def run(pid: int, *options: str) -> str:
    """Return what ``snap`` prints; what it could not read is no failure."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command(pid, *options),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **PLACE,
    )
    if done.returncode not in (0, 3):
        raise BenchError(f"snap ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def verdict_of(analysis: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first finding, where it is more than a hint."""
    findings: list[dict[str, Any]] = analysis["findings"]
    return findings[0] if findings and findings[0]["confidence"] >= STOOD_BY else None

# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: write the outcome of each test of the kernel matrix as soon as it is known.

A guest that is ended at its deadline has said so far what it found. STALLSCOPE_RESULTS names the
file, of one line of JSON for each test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

__all__: list[str] = []

MARK = "kernels"
MOST_OF_A_REASON = 2000


def groups_of(item: pytest.Item) -> list[str]:
    """Return the groups of a test; ``backend`` is replaced by the one of the run."""
    names = [str(name) for mark in item.iter_markers(MARK) for name in mark.args]
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return [str(parameters["backend"]) if name == "backend" else name for name in names]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record what a test has come to: its call, or the phase around it that did not pass."""
    report = yield
    if report.when == "call" or not report.passed:
        reason = ""
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        elif report.failed:
            reason = str(report.longrepr)[-MOST_OF_A_REASON:]
        record = {
            "test": item.nodeid,
            "groups": groups_of(item),
            "outcome": report.outcome,
            "reason": reason,
            "seconds": round(report.duration, 1),
        }
        with Path(os.environ["STALLSCOPE_RESULTS"]).open("a") as file:
            file.write(json.dumps(record) + "\n")
    return report

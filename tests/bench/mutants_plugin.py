# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest for mutants: it writes how each test ended, and whose lines are counted."""

from __future__ import annotations

import json
import os

import coverage
import pytest

__all__: list[str] = []

# As it is at the start: tests change their environment.
OUTCOMES = os.environ["STALLSCOPE_OUTCOMES"]
WITHOUT = os.environ["STALLSCOPE_WITHOUT"].split()
_begun = 0.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests of some marks; an expression of -m must know each mark."""
    items[:] = [item for item in items if not any(map(item.get_closest_marker, WITHOUT))]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count lines for this test: here, and in the programs that it starts."""
    global _begun
    _begun = sum(os.times()[:4])
    os.environ["STALLSCOPE_TEST"] = item.nodeid
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write how a phase of a test ended, and the seconds of CPU time until then."""
    used = sum(os.times()[:4]) - _begun
    with open(OUTCOMES, "a") as file:
        file.write(json.dumps([report.nodeid, report.outcome, used]) + "\n")

# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for scripts/test: write what happens to a file descriptor, a line of JSON each.

The first line is how many tests there will be, each other line is a test that has ended. Workers of
xdist report to the process that started them, and only that one writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

import msgspec
import pytest

__all__ = ["DESCRIPTOR", "Collected", "Ended", "decode"]

DESCRIPTOR = "STALLSCOPE_TEST_EVENTS"
"""Environment variable: the number of the descriptor."""


class Collected(msgspec.Struct, tag="collected", frozen=True):
    """How many tests there will be."""

    tests: int


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """A test has ended."""

    test: str
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    seconds: float
    said: str = ""
    """Why it was skipped, or how it failed."""


decode = msgspec.json.Decoder(Collected | Ended).decode


class Recorder:
    """Follow the tests of a run."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._seconds: dict[str, float] = {}
        self._collected = False

    def _write(self, event: Collected | Ended) -> None:
        self._file.write(msgspec.json.encode(event) + b"\n")
        self._file.flush()

    def _count(self, tests: int) -> None:
        if not self._collected:
            self._collected = True
            self._write(Collected(tests))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._count(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        self._count(len(ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(Ended(report.nodeid, "failed", 0.0, str(report.longrepr)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self._seconds.pop(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._write(Ended(report.nodeid, "failed", seconds, report.longreprtext))
        elif report.skipped:
            # The file, the line and the reason.
            said = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self._write(Ended(report.nodeid, "skipped", seconds, said.removeprefix("Skipped: ")))
        elif report.when == "call":
            self._write(Ended(report.nodeid, "passed", seconds))
        elif report.when == "setup":
            self._seconds[report.nodeid] = seconds


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        file = os.fdopen(int(os.environ[DESCRIPTOR]), "wb")
        config.add_cleanup(file.close)
        config.pluginmanager.register(Recorder(file))

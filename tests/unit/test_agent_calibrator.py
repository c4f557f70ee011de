# SPDX-License-Identifier: Apache-2.0
"""The agent's calibrator: a kept calibration, else a new one, again later where that fails."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stallscope.agent.calibrator import FIRST_PAUSE, LONGEST_PAUSE, Calibrator
from stallscope.base.errors import StallscopeError
from stallscope.collectors.calibration import calibrating, layouts, stored
from stallscope.collectors.calibration.layouts import TargetLayout
from stallscope.collectors.calibration.stored import Calibration
from stallscope.collectors.sql.login import Login
from tests.support.servers.waiting import PATIENCE

FOUND = Calibration("b" * 40, "mysqld", "9.7.0", 1, {"thd.tls": -472, "thd.id": 8})
KEPT = msgspec.structs.replace(FOUND, layout={"thd.tls": -8})


class Process:
    """A server process, and what is known of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept = TargetLayout({}, reason="this build is not calibrated")
        self.found: Callable[[], Calibration] = lambda: FOUND
        self.saved: list[Calibration] = []
        self.fails_to_save = False
        self.used: list[str] = []
        self.checked: list[bool] = []
        self.tried = 0
        monkeypatch.setattr(layouts, "of_process", self.of_process)
        monkeypatch.setattr(calibrating, "calibrate", self.calibrate)
        monkeypatch.setattr(stored, "save", self.save)

    def of_process(self, pid: int, *, checked: bool = False) -> TargetLayout:
        assert pid == 7
        self.checked.append(checked)
        return self.kept

    def calibrate(self, pid: int, login: Login, *more: Any) -> Calibration:
        assert (pid, login.user) == (7, "nobody")
        self.tried += 1
        return self.found()

    def save(self, calibration: Calibration) -> None:
        if self.fails_to_save:
            raise StallscopeError("no space")
        self.saved.append(calibration)

    def calibrator(self, *, sql: bool = True) -> Calibrator:
        login = (lambda: Login(user="nobody")) if sql else None
        return Calibrator(7, login, self.used.append)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


@pytest.mark.parametrize("sql", [True, False])
def test_a_kept_calibration_is_used_once_it_is_checked(process: Process, sql: bool) -> None:
    process.kept = TargetLayout(dict(KEPT.layout), KEPT.build, KEPT, 5)
    calibrator = process.calibrator(sql=sql)
    assert calibrator.interval == 0
    sample = calibrator.collect()
    assert sample.values == {"calibration.fields": 1.0}
    assert process.used == ["thd.tls=-8"]
    assert (process.checked, process.tried, process.saved) == ([True], 0, [])
    assert calibrator.interval == calibrator.rest_interval == math.inf


@pytest.mark.parametrize("case", ["no SQL", "no answer", "an answer"])
def test_without_a_connection_nothing_is_checked(process: Process, case: str) -> None:
    def fails() -> Calibration:
        raise StallscopeError("no answer")

    process.kept = TargetLayout(dict(KEPT.layout), KEPT.build, KEPT, 0)
    if case == "no answer":
        process.found = fails
    process.calibrator(sql=case != "no SQL").collect()
    answered = case == "an answer"
    assert process.used == ["thd.id=8 thd.tls=-472" if answered else "thd.tls=-8"]
    assert process.saved == ([FOUND] if answered else [])


@pytest.mark.parametrize("kept", [True, False])
def test_a_build_that_is_not_known_is_calibrated(process: Process, kept: bool) -> None:
    process.fails_to_save = not kept
    calibrator = process.calibrator()
    calibrator.collect()
    assert process.used == ["thd.id=8 thd.tls=-472"]
    assert process.saved == [FOUND] * kept
    assert calibrator.interval == math.inf


def test_a_failure_is_tried_again_later_and_later(process: Process) -> None:
    def fails() -> Calibration:
        raise StallscopeError("no calibration: no answer since 5.0 s")

    process.found = fails
    calibrator = process.calibrator()
    pauses = []
    for _ in range(9):
        with pytest.raises(StallscopeError, match="no answer"):
            calibrator.collect()
        pauses.append(calibrator.interval)
        assert calibrator.rest_interval == calibrator.interval
    assert pauses[:4] == [FIRST_PAUSE * 2**k for k in range(4)]
    assert pauses[-2:] == [LONGEST_PAUSE] * 2
    assert process.used == []
    process.found = lambda: FOUND
    calibrator.collect()
    assert (calibrator.interval, len(process.used)) == (math.inf, 1)


def test_without_sql_it_says_why_there_is_none(process: Process) -> None:
    calibrator = process.calibrator(sql=False)
    with pytest.raises(StallscopeError, match="not calibrated"):
        calibrator.collect()
    assert (process.used, process.tried, calibrator.interval) == ([], 0, FIRST_PAUSE)


def test_what_comes_after_the_end_is_for_nobody(process: Process) -> None:
    """A server that stalls keeps it waiting; another process is watched meanwhile."""
    begun, goes_on = threading.Event(), threading.Event()

    def waits() -> Calibration:
        begun.set()
        assert goes_on.wait(PATIENCE)
        return FOUND

    process.found = waits
    calibrator = process.calibrator()
    thread = threading.Thread(target=calibrator.collect)
    thread.start()
    assert begun.wait(PATIENCE)
    calibrator.close()
    goes_on.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert process.used == []

# SPDX-License-Identifier: Apache-2.0
"""Which source of deadlocks is asked when, and what is counted as missed, without a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.collectors.sql import deadlocks
from stallscope.collectors.sql.deadlocks import DeadlockWatch
from stallscope.collectors.sql.failures import LateError, StatementError
from stallscope.collectors.sql.versions import parse

DATA = Path(__file__).parent.parent / "data" / "deadlocks"
STATUS = (DATA / "mysql55.status").read_text()
LOG = (DATA / "mysql97-verbose.log").read_text()


class Server:
    """Answers like a session of collectors.sql, and stands for the connection too."""

    def __init__(self) -> None:
        self.variables = {"datadir": "/", "log_error": "", "sql_mode": ""}
        self.counter: float | None = None
        self.metric: float | None = None
        self.number = 0
        self.reports = 0
        self.late: str | None = None
        """Which answer is late: "all" or "report"."""
        self.version = parse("8.4.3")

    def ask(self, ask: Callable[[Any], Any], seconds: float, *, name: str = "") -> Any:
        if self.late == "all":
            raise LateError("no answer")
        return ask(self)

    def select(self, sql: str) -> list[tuple[Any, ...]]:
        if sql == deadlocks.VARIABLES:
            return list(self.variables.items())
        assert sql == deadlocks.STATUS
        if self.late == "report":
            raise LateError("no answer")
        self.reports += 1
        text = STATUS.replace("TRANSACTION 307", f"TRANSACTION {1000 + self.number}")
        return [("InnoDB", "", text if self.number else "")]

    def records(self, sql: str) -> list[dict[str, Any]]:
        assert sql == deadlocks.METRIC
        if self.metric is None:
            raise StatementError("no such table", 1109)
        return [{"name": "lock_deadlocks", "status": "enabled", "count": self.metric}]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def watch(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadlockWatch]:
    """Return one that may ask at each poll."""
    monkeypatch.setattr(deadlocks, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(deadlocks, "METRIC_SECONDS", 0.0)
    watch = DeadlockWatch(server, os.getpid(), lambda: server.counter)
    yield watch
    watch.close()


def test_the_report_is_asked_for_when_the_counter_moved(
    server: Server, watch: DeadlockWatch
) -> None:
    server.counter = 5
    watch.begin()
    assert server.reports == 1
    assert watch.poll() == []
    assert server.reports == 1
    server.counter, server.number = 8, 1
    assert len(watch.poll()) == 1
    assert watch.poll() == []
    assert server.reports == 2
    counts = watch.counts()
    assert (counts.seen, counts.counted, counts.missed) == (1, 3, 2)


def test_a_metric_that_is_set_back(server: Server, watch: DeadlockWatch) -> None:
    server.metric = 10
    watch.begin()
    server.metric, server.number = 12, 1
    watch.poll()
    server.metric, server.number = 1, 2  # SET GLOBAL innodb_monitor_reset_all
    assert len(watch.poll()) == 1
    counts = watch.counts()
    assert (counts.seen, counts.counted, counts.missed) == (2, 3, 1)


def test_a_server_that_does_not_count(
    server: Server, watch: DeadlockWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlocks, "REPORT_SECONDS", 3600.0)
    watch.begin()
    server.number = 1
    assert watch.poll() == []  # not before its time
    assert watch.poll(cue=True) == []
    monkeypatch.setattr(deadlocks, "REPORT_SECONDS", 0.0)
    assert len(watch.poll()) == 1
    server.number = 2
    assert len(watch.poll()) == 1
    counts = watch.counts()
    assert (counts.seen, counts.counted, counts.missed) == (2, None, None)


@pytest.mark.parametrize("version", ["5.5.9", "5.1.73", "5.5.68-MariaDB", "unknown"])
def test_a_server_with_a_kernel_mutex_is_asked_after_a_cue_alone(
    server: Server, watch: DeadlockWatch, version: str
) -> None:
    server.version = parse(version)
    server.number = 1
    assert watch.begin() == []
    assert watch.poll() == []
    assert server.reports == 0
    assert len(watch.poll(cue=True)) == 1
    assert watch.poll() == []
    assert server.reports == 1


def test_deadlocks_in_a_row_are_one_report_in_its_time(
    server: Server, watch: DeadlockWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.counter = 0
    watch.begin()
    monkeypatch.setattr(deadlocks, "REPORT_SECONDS", 3600.0)
    for number in range(1, 30):
        server.counter, server.number = number, number
        assert watch.poll(cue=True) == []
    assert server.reports == 1
    monkeypatch.setattr(deadlocks, "REPORT_SECONDS", 0.0)
    assert len(watch.poll()) == 1
    assert watch.poll() == []
    counts = watch.counts()
    assert (counts.seen, counts.missed, server.reports) == (1, 28, 2)


@pytest.mark.parametrize(("late", "counts"), [("all", True), ("all", False), ("report", True)])
def test_a_late_answer_loses_nothing(
    server: Server, watch: DeadlockWatch, late: str, counts: bool
) -> None:
    """Of a server that does not count it is the cue that is kept."""
    server.counter = 0 if counts else None
    watch.begin()
    server.counter = 1 if counts else None
    server.number, server.late = 1, late
    if not counts:
        watch._settings_at -= 60  # its variables are to be read again
    with pytest.raises(LateError):
        watch.poll(cue=not counts)
    server.late = None
    assert len(watch.poll()) == 1


def test_a_log_that_is_written_slowly(
    server: Server, watch: DeadlockWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that waits for the disk between two lines has not ended its report."""
    log = tmp_path / "server.err"
    log.write_text("")
    server.variables |= {"innodb_print_all_deadlocks": "ON", "log_error": str(log)}
    server.metric = 0
    monkeypatch.setattr(deadlocks, "QUIET_SECONDS", 3600.0)
    assert watch.begin() == []
    lines = LOG.splitlines(keepends=True)
    end = 1 + next(i for i, line in enumerate(lines) if "WE ROLL BACK" in line)
    for at in range(end):
        with log.open("a") as written:
            written.write(lines[at])
        found = watch.poll()
        assert len(found) == (at == end - 1)
        assert watch.poll() == []
    (deadlock,) = found
    assert deadlock.victim == 1
    assert all(transaction.holds for transaction in deadlock.transactions)
    with log.open("a") as written:
        written.writelines(lines[end : end + end - 1])
    assert watch.poll() == []
    monkeypatch.setattr(deadlocks, "QUIET_SECONDS", 0.0)
    (cut,) = watch.poll()  # nothing more comes of it
    assert cut.victim is None
    assert len(cut.transactions) == 2


def test_a_log_that_cannot_be_read(server: Server, watch: DeadlockWatch) -> None:
    server.variables |= {"innodb_print_all_deadlocks": "ON", "log_error": "/nonexistent.err"}
    watch.begin()
    assert watch.counts().source == "status"
    assert "nonexistent.err: No such file" in (watch.counts().why or "")

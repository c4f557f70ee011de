# SPDX-License-Identifier: Apache-2.0
"""Deadlocks in the words of real servers, and following a log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.errors import StallscopeError
from stallscope.collectors import logfile
from stallscope.collectors.logfile import LogFollower
from stallscope.server.deadlocks import Deadlock, Reader, of_status

DATA = Path(__file__).parent.parent / "data" / "deadlocks"
NOW = "2026-11-21 15:00:00"
LOGS = [("mariadb", True), ("mysql97", False), ("mysql97-verbose", True)]
STATUSES = [("mariadb", 2), ("mysql97", 2), ("mysql55", 1)]


def _log(name: str) -> list[str]:
    return (DATA / f"{name}.log").read_text().splitlines()


def _read(lines: list[str]) -> list[Deadlock]:
    return Reader("log", headless=True).read(lines, 7, NOW)


def _check(deadlock: Deadlock) -> None:
    assert len(deadlock.transactions) == 2
    for transaction in deadlock.transactions:
        assert transaction.user == "root"
        assert transaction.query == "UPDATE t SET b = ? WHERE a = ?"
        assert transaction.waits is not None
        assert transaction.waits.mode == "X locks rec but not gap"
        assert len(transaction.waits.heap) == 1
    one, two = deadlock.transactions
    assert one.connection != two.connection
    assert two.holds[0] == one.waits
    assert "SECRET" not in repr(deadlock)


@pytest.mark.parametrize(("name", "headed"), LOGS)
def test_logs(name: str, headed: bool) -> None:
    found = _read(_log(name))
    assert len(found) == 2
    assert found[0].id != found[1].id
    for deadlock in found:
        _check(deadlock)
        assert (deadlock.victim is not None) == headed
        assert (deadlock.server_time is not None) == headed
        assert deadlock.time_ns == 7


@pytest.mark.parametrize(("name", "held"), STATUSES)
def test_statuses(name: str, held: int) -> None:
    found = of_status((DATA / f"{name}.status").read_text(), 7, NOW)
    assert found is not None
    _check(found)
    assert found.victim in (0, 1)
    assert found.server_time is not None
    # MySQL 5.5 prints no locks that the first one holds.
    assert sum(bool(transaction.holds) for transaction in found.transactions) == held
    assert found.id.startswith("20261121T")


def test_log_and_status_report_the_same_deadlock() -> None:
    status = of_status((DATA / "mariadb.status").read_text(), 7, NOW)
    assert status is not None
    assert status.id == _read(_log("mariadb"))[-1].id


def test_no_deadlock() -> None:
    assert of_status("", 7, NOW) is None
    assert of_status("\nLATEST DETECTED DEADLOCK\n---\n", 7, NOW) is None
    assert _read(["2026-11-21 15:00:00 0 [Note] InnoDB: Buffer pool loaded"] * 10) == []


def test_the_next_section_of_a_status_is_not_read() -> None:
    text = (DATA / "mysql55.status").read_text()
    at = text.index("*** WE ROLL BACK")
    cut = text[:at] + text[text.index("\n", at) + 1 :]
    assert cut.count("---TRANSACTION") >= 1
    found = of_status(cut, 7, NOW)
    assert found is not None
    _check(found)
    assert found.victim is None


def _transaction(number: int, holds: int, waits: int) -> list[str]:
    lock = "RECORD LOCKS space id 2 page no 4 n bits 72 index PRIMARY of table `d`.`t` trx id"
    return [
        f"TRANSACTION {number}, ACTIVE 0 sec starting index read",
        f"MySQL thread id {number}, OS thread handle 1, query id {number} localhost root updating",
        "UPDATE t SET b = 'a",
        "b' WHERE c = 1",
        f"{lock} {number} lock_mode X locks rec but not gap",
        f"Record lock, heap no {holds} PHYSICAL RECORD: n_fields 4",
        "",
        f"{lock} {number} lock_mode X locks rec but not gap waiting",
        f"Record lock, heap no {waits} PHYSICAL RECORD: n_fields 4",
        "",
    ]


def test_three_in_a_circle_without_headings() -> None:
    circle = _transaction(1, 5, 6) + _transaction(2, 6, 7) + _transaction(3, 7, 5)
    found = _read(circle + circle)
    assert [len(deadlock.transactions) for deadlock in found] == [3, 3]
    assert found[0].transactions[1].query == "UPDATE t SET b = ? WHERE c = ?"


def test_lines_in_pieces() -> None:
    reader = Reader("log", headless=True)
    found = []
    for line in _log("mysql97"):
        found += reader.read([line], 7, NOW)
    assert len(found) == 2


LINES = sorted(set(_log("mariadb") + _log("mysql97-verbose")))


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=30), max_size=60))
def test_any_lines_are_read(lines: list[str]) -> None:
    for deadlock in _read(lines):
        assert len(deadlock.transactions) > 1
        assert "SECRET" not in repr(deadlock)


Follow = Callable[[Path], LogFollower]


@pytest.fixture
def follow() -> Iterator[Follow]:
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(contextlib.closing(LogFollower(str(path))))


def test_a_log_is_followed_from_its_end(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    follower = follow(path)
    assert follower.lines() == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert follower.lines() == ["one"]
        file.write("o\n")
    assert follower.lines() == ["two"]


def test_rotation(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    path.write_text("")
    follower = follow(path)
    with path.open("a") as old:
        path.rename(tmp_path / "log.1")
        assert follower.lines() == []  # nobody has opened a new one yet
        old.write("last of the old\n")
    path.write_text("first of the new\n")
    assert follower.lines() == ["last of the old", "first of the new"]
    assert follower.lines() == []


def test_truncation(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "log"
    path.write_text("a long line\n")
    follower = follow(path)
    path.write_text("again\n")
    assert follower.lines() == ["again"]


def test_a_flood_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: Follow
) -> None:
    monkeypatch.setattr(logfile, "MAX_READ", 1000)
    monkeypatch.setattr(logfile, "MAX_BEHIND", 5000)
    path = tmp_path / "log"
    path.write_text("")
    follower = follow(path)
    path.write_text("x" * 9999 + "\n")
    assert follower.lines() == ["x" * 999]
    assert follower.skipped == 9000


def test_no_file_to_follow(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StallscopeError, match="is no regular file"):
        LogFollower(str(tmp_path / "pipe"))
    with pytest.raises(StallscopeError, match="No such file"):
        LogFollower(str(tmp_path / "none"))

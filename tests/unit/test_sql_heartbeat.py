# SPDX-License-Identifier: Apache-2.0
"""What one question that hangs does to others: to the heartbeat, and to those of its connection."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from stallscope.collectors.sql import connection as module
from stallscope.collectors.sql import retries as retries_module
from stallscope.collectors.sql.asking import MAX_REPLACED, ServerConnection
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import (
    AbortedLoginError,
    ConnectError,
    LateError,
    RefusedError,
)
from stallscope.collectors.sql.heartbeat import Heartbeat
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.retries import LoginRetries
from tests.support.servers.waiting import PATIENCE, wait_until

__all__: list[str] = []

NOBODY = Login(user="nobody")


class Session:
    """In place of one with a server."""

    beat = "DO 1"
    facts = None
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.number = type(self).made
        self.over = ""

    def run(self, sql: str) -> None: ...

    def quit(self) -> None:
        self.over = self.over or "quit"

    def drop(self) -> None:
        self.over = self.over or "dropped"


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Return the sessions that are opened."""
    made: list[Session] = []

    def connect(*_: object) -> Session:
        made.append(Session())
        return made[-1]

    end: Any = SimpleNamespace(dup=lambda: end, close=lambda: None, shutdown=lambda how: None)
    monkeypatch.setattr(module, "reach", lambda login: end)
    monkeypatch.setattr(module, "connect", connect)
    return made


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


class Waiting:
    """A question that hangs."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.asked = 0

    def __call__(self, _: object) -> str:
        self.asked += 1
        self.gate.wait()
        return "late"


def hang(connection: Connection, question: Waiting, name: str) -> None:
    """Ask, until it was asked and is late: a thread can get no CPU in all the time."""
    before = question.asked
    while question.asked == before:
        with pytest.raises(LateError):
            connection.ask(question, 0.01, name=name)


def test_a_heartbeat_has_waited_since_it_was_asked(gate: threading.Event) -> None:
    with closing(Connection(NOBODY)) as beat:
        begun = time.monotonic()
        hang(beat, Waiting(gate), "heartbeat")
        sample = Heartbeat(beat, 0.01).collect()
        assert sample.error is not None
        assert 10 <= sample.elapsed_ms <= (time.monotonic() - begun) * 1e3
        gate.set()
        wait_until(lambda: beat.waiting_since() is None, "the answer came")
        assert Heartbeat(beat, PATIENCE).collect().error is None


def test_a_session_that_nobody_asks_is_ended_and_opened_again() -> None:
    made: list[Session] = []

    class Link:
        def login(self) -> Any:
            made.append(Session())
            return made[-1]

        def cut(self) -> None: ...

        def close(self) -> None: ...

    with closing(ServerConnection[Any]("here", Link, idle_seconds=0.01)) as connection:
        for _ in range(3):
            assert connection.ask(lambda _: "fine", PATIENCE) == "fine"
            wait_until(lambda: made[-1].over == "quit", "it was ended")
        assert connection.connects == 3
    assert [session.over for session in made] == ["quit"] * 3
    with closing(ServerConnection[Any]("here", Link)) as connection:
        assert connection.ask(lambda _: "fine", PATIENCE) == "fine"
        assert made[-1].over == ""


def test_a_question_that_hangs_alone_leaves_the_others(
    gate: threading.Event, sessions: list[Session]
) -> None:
    beat = Connection(NOBODY)
    with closing(beat), closing(Connection(NOBODY, lives=beat.answered_since)) as connection:
        status = Waiting(gate)
        connection.open(PATIENCE)
        hang(connection, status, "replication")
        with pytest.raises(LateError, match="no answer to replication since"):
            connection.ask(lambda _: "fine", PATIENCE)  # the server may hang as a whole
        assert Heartbeat(beat, PATIENCE).collect().error is None
        assert connection.ask(lambda _: "fine", PATIENCE) == "fine"
        for _ in range(20):
            with pytest.raises(LateError, match="no answer to replication since"):
                connection.ask(status, PATIENCE, name="replication")
        assert (status.asked, connection.replaced, connection.connects) == (1, 1, 2)
        gate.set()
        wait_until(lambda: connection.replaced == 0, "its answer came")
        assert connection.ask(status, PATIENCE, name="replication") == "late"
        assert connection.dropped == 1
        assert connection.connects == 2
    assert [session.over for session in sessions] == ["quit"] * 3


def test_only_so_many_questions_hang_at_a_time(
    gate: threading.Event, sessions: list[Session]
) -> None:
    with closing(Connection(NOBODY, lives=lambda since: True)) as connection:
        for number in range(MAX_REPLACED + 1):
            connection.open(PATIENCE)
            hang(connection, Waiting(gate), f"question {number}")
        for _ in range(20):
            with pytest.raises(LateError):
                connection.open(PATIENCE)
        assert len(sessions) == MAX_REPLACED + 1
        gate.set()
        wait_until(lambda: connection.waiting_since() is None, "the last answer came")
        connection.open(PATIENCE)
        wait_until(lambda: connection.replaced == 0, "all answers came")


def test_a_login_that_hangs_is_not_repeated(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def connect(*_: object) -> Session:
        tried.append(1)
        gate.wait()
        return Session()

    monkeypatch.setattr(module, "connect", connect)
    with closing(Connection(NOBODY, lives=lambda since: True)) as connection:
        while not tried:
            with pytest.raises(LateError):
                connection.open(0.01)
        for _ in range(20):
            with pytest.raises(LateError, match="connecting has taken"):
                connection.open(PATIENCE)
        assert len(tried) == 1
        gate.set()
        wait_until(lambda: connection.waiting_since() is None, "it is logged in")
        connection.open(PATIENCE)


def test_two_connections_try_a_refused_account_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(*_: object) -> Session:
        tried.append(1)
        raise RefusedError("Access denied")

    monkeypatch.setattr(module, "connect", refuse)
    retries = LoginRetries()
    one, other = (Connection(NOBODY, retries=retries) for _ in range(2))
    with closing(one), closing(other):
        start = threading.Barrier(2)
        said: list[str] = []

        def ask(connection: Connection) -> None:
            start.wait()
            with pytest.raises(RefusedError, match="Access denied") as error:
                connection.open(PATIENCE)
            said.append(str(error.value))

        threads = [threading.Thread(target=ask, args=(each,)) for each in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tried) == 1
        assert sum("tried again in 60 s" in text for text in said) == 1


@pytest.mark.parametrize(
    ("kind", "longest"),
    [(ConnectError, 30.0), (RefusedError, 600.0), (AbortedLoginError, 6 * 3600.0)],
)
def test_pauses_grow(
    kind: type[ConnectError], longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(retries_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    retries = LoginRetries()
    times = _failures(retries, kind, clock, 100)
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= (1.0 if kind is ConnectError else 60.0)
    assert longest <= pauses[-1] <= longest + 20
    if kind is AbortedLoginError:
        assert times[-1] > 20 * 86400, "max_connect_errors is 100 by default"


def _failures(
    retries: LoginRetries, kind: Callable[[str], ConnectError], clock: Any, count: int
) -> list[float]:
    """Return when so many logins were tried, by somebody who asks all the time."""
    step = 1.0 if kind is ConnectError else 20.0
    times: list[float] = []
    while len(times) < count:
        try:
            with retries.turn():
                times.append(clock.now)
                raise kind("no")
        except ConnectError:
            clock.now += step
    return times

# SPDX-License-Identifier: Apache-2.0
"""Questions to a server: one at a time, each with a deadline; the server may hang.

A thread of its own does all that can block. A caller waits for it until a deadline and no longer.
After the deadline, only the thread goes on waiting; a caller that asks meanwhile gets an error at
once, and the late answer is dropped. So a server that hangs for an hour has one waiting statement
from us, not 3600.

A server can also hang in one statement alone, such as ``SHOW REPLICA STATUS`` behind a STOP REPLICA
that waits. Where somebody else's later question was answered (``lives``), the thread and session
that wait are replaced, and other questions go on; the one that hangs is not asked again before its
answer has come.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from stallscope.collectors.sql.failures import (
    ConnectError,
    LateError,
    SqlError,
    StatementError,
)
from stallscope.collectors.sql.retries import LoginRetries
from stallscope.collectors.sql.versions import ServerFacts

__all__ = ["Asked", "Link", "ServerConnection"]

T = TypeVar("T")

MAX_REPLACED = 3
"""The most sessions that wait for late answers beside the one in use: each holds a connection of
the server."""
ANSWER_SECONDS = 0.5
"""How long closing waits for an answer that is on its way."""
QUIT_SECONDS = 5.0
"""How long closing waits for COM_QUIT to be written: the thread may have to wait for a CPU."""
CUT_SECONDS = 0.5
"""How long closing waits for a read that was cut; a connect(2) may take longer."""


class Asked(Protocol):
    """An open session with a server, as far as it is not asked anything."""

    facts: ServerFacts
    wanted: Callable[[], bool]
    """Returns whether a caller still waits for the answers: if not, no further statement is
    sent."""
    sent: int
    """Statements so far."""

    def quit(self) -> None:
        """End the session as the server's clients do."""
        ...

    def drop(self) -> None:
        """End it without a message."""
        ...


S = TypeVar("S", bound=Asked)
S_co = TypeVar("S_co", bound=Asked, covariant=True)


class Link(Protocol[S_co]):
    """The way to a server, before and during the session."""

    def login(self) -> S_co:
        """Log in; it can take as long as the server hangs. Raises: ConnectError."""
        ...

    def cut(self) -> None:
        """End a read or a write of the session, from another thread."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class _Question(Generic[S]):
    """The query of one caller."""

    def __init__(self, ask: Callable[[S], Any], deadline: float, name: str) -> None:
        self.ask = ask
        self.deadline = deadline
        self.name = name
        self.since = time.monotonic()
        self.done = False
        self.dropped = False
        self.answer: Any = None
        self.error: BaseException | None = None


class _Worker(Generic[S]):
    """A thread, its session with the server, and the question that it works on."""

    def __init__(
        self,
        reach: Callable[[], Link[S]],
        retries: LoginRetries,
        condition: threading.Condition,
        idle_seconds: float | None,
    ) -> None:
        self.question: _Question[S] | None = None
        self.session: S | None = None
        self.replaced = False
        """Nothing more is asked: it ends when its answer has come."""
        self.closed = False
        self.connects = 0
        self.dropped = 0
        self.answered = 0.0
        """When the latest question that the server answered was asked, by CLOCK_MONOTONIC."""
        self._reach = reach
        self._retries = retries
        self._condition = condition
        self._idle_seconds = idle_seconds
        self._thread: threading.Thread | None = None
        self._link: Link[S] | None = None
        self._connected_at = 0.0

    @property
    def is_late(self) -> bool:
        return self.question is not None and self.question.dropped

    def start(self, question: _Question[S]) -> None:
        """Give it a question; the caller holds the condition."""
        self.question = question
        if self._thread is None or not self._thread.is_alive():
            # A daemon: a server that hangs must not keep this program from ending.
            self._thread = threading.Thread(target=self._work, name="stallscope-sql", daemon=True)
            self._thread.start()

    def cut(self) -> None:
        """End a read or a write of its session; the caller holds the condition."""
        if self._link is not None:
            self._link.cut()

    def join(self, seconds: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._condition:
                is_wanted = self._condition.wait_for(
                    lambda: self.question is not None or self._is_over(),
                    None if self.session is None else self._idle_seconds,
                )
                idle = None
                if not is_wanted:
                    idle, self.session = self.session, None
                if self._is_over() and (self.closed or self.question is None):
                    break
                question = self.question
            if idle is not None:
                idle.quit()
                self._forget()
                continue
            assert question is not None
            self._serve(question)
            with self._condition:
                question.done = True
                if question.error is None or isinstance(question.error, StatementError):
                    self.answered = question.since
                self.dropped += question.dropped
                self.question = None
                self._condition.notify_all()
        if self.session is not None:
            self.session.quit()
        self._forget()

    def _is_over(self) -> bool:
        return self.closed or self.replaced

    def _serve(self, question: _Question[S]) -> None:
        try:
            session = self.session or self._connect()
            # No caller waits any more: do not load a server that has just recovered.
            session.wanted = lambda: not question.dropped and not self.closed
            if question.dropped:
                return
            question.answer = question.ask(session)
        except ConnectError as error:
            if self.session is not None:
                self._retries.lost(error, time.monotonic() - self._connected_at)
            self._forget()
            question.error = error
        except BaseException as error:
            question.error = error
            if not isinstance(error, SqlError):
                self._forget()  # unread rows of an answer may be in it

    def _connect(self) -> S:
        with self._retries.turn():
            link = self._reach()
            with self._condition:
                if self.closed:
                    link.close()
                    raise ConnectError("the connection was closed")
                self._link = link
            session = link.login()
        self.connects += 1
        self.session = session
        self._connected_at = time.monotonic()
        return session

    def _forget(self) -> None:
        with self._condition:
            session, self.session = self.session, None
            link, self._link = self._link, None
        if session is not None:
            session.drop()
        if link is not None:
            link.close()


class ServerConnection(Generic[S]):
    """A connection that is opened for the first query, kept, and opened again after it ended."""

    def __init__(
        self,
        where: str,
        reach: Callable[[], Link[S]],
        *,
        retries: LoginRetries | None = None,
        lives: Callable[[float], bool] = lambda since: False,
        idle_seconds: float | None = None,
    ) -> None:
        """``where``: the server's address, for messages. ``reach``: begins to connect. ``retries``:
        shared by connections with the same login. ``lives``: returns whether the server answered a
        question of another connection that was asked after this time (by CLOCK_MONOTONIC, in
        seconds). ``idle_seconds``: a session of which nothing was asked for so long is ended."""
        self._where = where
        self._reach = reach
        self._idle_seconds = idle_seconds
        self._retries = LoginRetries() if retries is None else retries
        self._lives = lives
        self._condition = threading.Condition()
        self._worker = self._new_worker()
        self._waiting: list[_Worker[S]] = []
        """Those that were replaced, and still wait for their answers."""
        self._before = (0, 0)
        """Connects and dropped answers of those whose answers have come."""
        self._closed = False

    @property
    def connects(self) -> int:
        """How often a session was opened."""
        return self._before[0] + sum(one.connects for one in self._workers())

    @property
    def sent(self) -> int:
        """How many statements the open session has sent: they are in the server's own counts."""
        session = self._worker.session
        return 0 if session is None else session.sent

    @property
    def dropped(self) -> int:
        """How many answers came too late."""
        return self._before[1] + sum(one.dropped for one in self._workers())

    @property
    def replaced(self) -> int:
        """How many sessions wait for a late answer beside the one in use."""
        with self._condition:
            self._reap()
            return len(self._waiting)

    @property
    def facts(self) -> ServerFacts | None:
        """The server of the open connection, None without one."""
        session = self._worker.session
        return None if session is None else session.facts

    def begin(self, ask: Callable[[S], object]) -> None:
        """Connect, ask, and drop the answer, without waiting for it: the next question does. So it
        is known by then whether the server answers."""
        with self._condition:
            if not self._closed and self._worker.question is None:
                self._worker.start(_Question(ask, math.inf, ""))
                self._condition.notify_all()

    @property
    def is_busy(self) -> bool:
        """Return whether an answer is still to come."""
        return self._worker.question is not None

    def open(self, seconds: float) -> ServerFacts:
        """Connect now, where there is no connection. Raises: SqlError."""
        return self.ask(lambda session: session.facts, seconds)

    def ask(self, ask: Callable[[S], T], seconds: float, *, name: str = "") -> T:
        """Run ``ask`` in the connection's thread; return its answer.

        ``seconds`` limits the sum: waiting for a turn, connecting, and every statement. ``name``:
        of the question; one that hangs is not asked again meanwhile.

        Raises: LateError where there is no answer yet, ConnectError where there is no connection,
        StatementError where the server refused.
        """
        question = _Question(ask, time.monotonic() + seconds, name)
        with self._condition:
            self._take_turn(question)
            self._worker.start(question)
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: question.done or self._closed, question.deadline - time.monotonic()
            )
            if not question.done:
                question.dropped = True
                raise self._late(question)
        if question.error is not None:
            if self._closed:  # and its thread has seen that before this one
                raise ConnectError("the connection was closed") from question.error
            raise question.error
        answer: T = question.answer
        return answer

    def answered_since(self, since: float) -> bool:
        """Return whether the server answered a question that was asked after this time."""
        return self._worker.answered > since

    def waiting_since(self) -> float | None:
        """Return for how many seconds an answer has been late; None where none is."""
        with self._condition:
            question = self._worker.question
            if question is None or not question.dropped:
                return None
            return time.monotonic() - question.since

    def close(self) -> None:
        """Send COM_QUIT, or cut the connection where an answer does not come; end the thread."""
        with self._condition:
            self._closed = True
            workers = self._workers()
            for one in workers:
                one.closed = True
            self._condition.notify_all()
            # The server counts and logs a client that closes during an answer as aborted.
            self._condition.wait_for(
                lambda: all(one.question is None for one in workers), ANSWER_SECONDS
            )
            waits = [one for one in workers if one.question is not None]
            for one in waits:
                one.cut()
        for one in workers:
            one.join(CUT_SECONDS if one in waits else QUIT_SECONDS)

    def _new_worker(self) -> _Worker[S]:
        return _Worker(self._reach, self._retries, self._condition, self._idle_seconds)

    def _workers(self) -> list[_Worker[S]]:
        return [self._worker, *self._waiting]

    def _take_turn(self, question: _Question[S]) -> None:
        """Wait for the turn while the query before is in time; fail at once where it is late, and
        nothing shows that the server answers others."""
        if not self._condition.wait_for(
            lambda: self._worker.question is None or self._worker.is_late or self._closed,
            question.deadline - time.monotonic(),
        ):
            before = self._worker.question
            if before is not None and before.deadline == math.inf:
                raise self._late(before)
            raise LateError(f"the connection to {self._where} was busy with another query")
        if self._closed:
            raise ConnectError("the connection was closed")
        self._reap()
        if (late := self._worker.question) is not None:
            if not self._may_replace(late):
                raise self._late(late)
            self._worker.replaced = True
            self._waiting.append(self._worker)
            self._worker = self._new_worker()
        for one in self._waiting:
            if question.name and one.question is not None and one.question.name == question.name:
                raise self._late(one.question)
        if self._worker.session is None:
            self._retries.check()

    def _may_replace(self, late: _Question[S]) -> bool:
        return (
            self._worker.session is not None  # else it is the login that hangs: so will the next
            and len(self._waiting) < MAX_REPLACED
            and self._lives(late.since)
        )

    def _reap(self) -> None:
        """Forget those whose answers have come."""
        gone = [one for one in self._waiting if one.question is None]
        for one in gone:
            self._waiting.remove(one)
            self._before = self._before[0] + one.connects, self._before[1] + one.dropped

    def _late(self, question: _Question[S]) -> SqlError:
        if self._closed:
            return ConnectError("the connection was closed")
        lasted = time.monotonic() - question.since
        if self._worker.question is question and self._worker.session is None:
            text = f"{self._where}: connecting has taken {lasted:.1f} s so far"
            return LateError(text, lasted)
        what = f" to {question.name}" if question.name else ""
        return LateError(f"{self._where}: no answer{what} since {lasted:.1f} s")

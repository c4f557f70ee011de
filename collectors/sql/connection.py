# SPDX-License-Identifier: Apache-2.0
"""The one connection: one question at a time, each with a deadline, and a server that may hang.

A thread of its own does all that can block. Who asks waits for it until a deadline and no longer.
When the deadline passes, the thread goes on waiting alone; a caller that asks meanwhile gets an
error at once, and the answer that comes at last is dropped. So a server that hangs for an hour has
one statement of ours waiting, not 3600.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from stallscope.collectors.sql.failures import ConnectError, LateError, RefusedError, SqlError
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import ServerFacts, SqlSession, connect, reach

__all__ = ["Connection"]

T = TypeVar("T")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
REFUSED_PAUSE = 60.0
"""Accounts can be locked, and hosts blocked, by failed logins: those are tried rarely."""
LONGEST_REFUSED_PAUSE = 600.0


EXPENSIVE_SECONDS = 5.0
"""What an expensive statement may take before it says that the server does not answer: the server
itself ends it then (SESSION in stallscope.collectors.sql.protocol)."""
ANSWER_SECONDS = 0.5
"""For an answer that is on its way when the connection is closed."""
QUIT_SECONDS = 5.0
"""For COM_QUIT to be written: five bytes, by a thread that may have to wait for a CPU."""
CUT_SECONDS = 0.5
"""For a read that was cut to end; a connect(2) may not."""


class _Question:
    """What one caller wants to know."""

    def __init__(self, ask: Callable[[SqlSession], Any], deadline: float, expensive: bool) -> None:
        self.ask = ask
        self.deadline = deadline
        self.expensive = expensive
        self.since = time.monotonic()
        self.done = False
        self.dropped = False
        self.answer: Any = None
        self.error: BaseException | None = None


class Connection:
    """A connection that is opened on the first question, kept, and opened again when it ended."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.connects = 0
        """How often it was opened."""
        self.dropped = 0
        """Answers that came too late."""
        self._condition = threading.Condition()
        self._question: _Question | None = None
        self._worker: threading.Thread | None = None
        self._session: SqlSession | None = None
        self._socket: socket.socket | None = None
        self._closed = False
        self._failure: ConnectError | None = None
        self._pause = 0.0
        self._retry_at = 0.0
        self._connected_at = 0.0

    @property
    def facts(self) -> ServerFacts | None:
        """Who answers, while there is a connection."""
        session = self._session
        return None if session is None else session.facts

    def open(self, seconds: float) -> ServerFacts:
        """Connect now, where there is no connection. Raises: SqlError."""
        return self.ask(lambda session: session.facts, seconds)

    def ask(self, ask: Callable[[SqlSession], T], seconds: float, *, expensive: bool = False) -> T:
        """Run ``ask`` in the connection's thread; return its answer.

        ``seconds`` are for all of it: one's turn, connecting, and every statement. ``expensive``:
        it can take long on a server that answers everybody else at once.

        Raises: LateError where there is no answer yet, ConnectError where there is no connection,
        StatementError where the server refused.
        """
        question = _Question(ask, time.monotonic() + seconds, expensive)
        with self._condition:
            self._take_turn(question)
            self._start()
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

    def waiting_since(self) -> float | None:
        """Return for how many seconds a late answer has been owed; None where none is."""
        with self._condition:
            question = self._question
            if question is None or not question.dropped:
                return None
            owed = time.monotonic() - question.since
            if question.expensive:
                owed -= EXPENSIVE_SECONDS
            return owed if owed > 0 else None

    def close(self) -> None:
        """Send COM_QUIT, or cut the connection where an answer does not come; end the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            # Who leaves during an answer is an aborted client, in the server's count and its log.
            waits = not self._condition.wait_for(lambda: self._question is None, ANSWER_SECONDS)
            if self._socket is not None and waits:
                _cut(self._socket)
            worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(CUT_SECONDS if waits else QUIT_SECONDS)

    def _take_turn(self, question: _Question) -> None:
        """Wait for a question that is still in time; never behind one that is late."""
        if not self._condition.wait_for(
            lambda: self._question is None or self._question.dropped or self._closed,
            question.deadline - time.monotonic(),
        ):
            raise LateError(f"the connection to {self.login.where} was busy with another query")
        if self._closed:
            raise ConnectError("the connection was closed")
        if self._question is not None:
            raise self._late(self._question)
        if self._session is None:
            self._check_pause()
        self._question = question

    def _check_pause(self) -> None:
        left = self._retry_at - time.monotonic()
        if self._failure is not None and left > 0:
            raise type(self._failure)(f"{self._failure}; tried again in {left:.0f} s")

    def _late(self, question: _Question) -> SqlError:
        if self._closed:
            return ConnectError("the connection was closed")
        lasted = time.monotonic() - question.since
        if self._session is None:
            return LateError(f"{self.login.where}: connecting has taken {lasted:.1f} s so far")
        return LateError(f"{self.login.where}: no answer since {lasted:.1f} s")

    def _start(self) -> None:
        if self._worker is None or not self._worker.is_alive():
            # A daemon: a server that hangs must not keep this program from ending.
            self._worker = threading.Thread(target=self._work, name="stallscope-sql", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._question is not None or self._closed)
                if self._closed:
                    break
                question = self._question
            assert question is not None
            self._serve(question)
            with self._condition:
                question.done = True
                self.dropped += question.dropped
                self._question = None
                self._condition.notify_all()
        if self._session is not None:
            self._session.quit()
        self._forget()

    def _serve(self, question: _Question) -> None:
        try:
            session = self._session or self._connect()
            # Nobody waits any more: do not load a server that just came back.
            session.wanted = lambda: not question.dropped and not self._closed
            if question.dropped:
                return
            question.answer = question.ask(session)
        except ConnectError as error:
            if self._session is not None:
                self._lost(error)
            self._forget()
            question.error = error
        except BaseException as error:
            question.error = error
            if not isinstance(error, SqlError):
                self._forget()  # rows of an answer may be left in it

    def _connect(self) -> SqlSession:
        try:
            end = reach(self.login)
            with self._condition:
                if self._closed:
                    end.close()
                    raise ConnectError("the connection was closed")
                # A socket that TLS wraps is gone from `end`; this one still leads there.
                self._socket = end.dup()
            session = connect(self.login, end)
        except ConnectError as error:
            self._retry_later(error)
            raise
        self.connects += 1
        self._session = session
        self._connected_at = time.monotonic()
        return session

    def _lost(self, error: ConnectError) -> None:
        """Connect again at once, but not where connections keep ending soon."""
        if time.monotonic() - self._connected_at > LONGEST_PAUSE:
            self._failure, self._pause = None, 0.0
        else:
            self._retry_later(error)

    def _retry_later(self, error: ConnectError) -> None:
        """Say when the next try is: each later than the one before."""
        refused = isinstance(error, RefusedError)
        first, longest = (
            (REFUSED_PAUSE, LONGEST_REFUSED_PAUSE) if refused else (FIRST_PAUSE, LONGEST_PAUSE)
        )
        self._pause = min(max(first, self._pause * 2), longest)
        self._failure = error
        self._retry_at = time.monotonic() + self._pause

    def _forget(self) -> None:
        with self._condition:
            session, self._session = self._session, None
            end, self._socket = self._socket, None
        if session is not None:
            session.drop()
        if end is not None:
            end.close()


def _cut(end: socket.socket) -> None:
    # close(2) would leave a thread in its read; shutdown(2) ends the read.
    with contextlib.suppress(OSError, ValueError):
        end.shutdown(socket.SHUT_RDWR)

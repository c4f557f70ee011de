# SPDX-License-Identifier: Apache-2.0
"""The one connection to a server: one query at a time, each with a deadline; the server may hang.

Its own thread does all that can block. A caller waits for it until a deadline and no longer. After
the deadline, only the thread goes on waiting; a caller that asks meanwhile gets an error at once,
and the late answer is dropped. So a server that hangs for an hour has one waiting statement from
us, not 3600.
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
"""Failed logins can lock accounts and block hosts: they are retried rarely."""
LONGEST_REFUSED_PAUSE = 600.0


EXPENSIVE_SECONDS = 5.0
"""The time after which an expensive statement means that the server does not answer: the server
itself ends it then (SESSION in stallscope.collectors.sql.protocol)."""
ANSWER_SECONDS = 0.5
"""How long closing waits for an answer that is on its way."""
QUIT_SECONDS = 5.0
"""How long closing waits for COM_QUIT to be written: the thread may have to wait for a CPU."""
CUT_SECONDS = 0.5
"""How long closing waits for a read that was cut; a connect(2) may take longer."""


class _Question:
    """The query of one caller."""

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
    """A connection that is opened for the first query, kept, and opened again after it ended."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.connects = 0
        """How often it was opened."""
        self.dropped = 0
        """How many answers came too late."""
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
        """The server of the open connection, None without one."""
        session = self._session
        return None if session is None else session.facts

    def open(self, seconds: float) -> ServerFacts:
        """Connect now, where there is no connection. Raises: SqlError."""
        return self.ask(lambda session: session.facts, seconds)

    def ask(self, ask: Callable[[SqlSession], T], seconds: float, *, expensive: bool = False) -> T:
        """Run ``ask`` in the connection's thread; return its answer.

        ``seconds`` limits the sum: waiting for a turn, connecting, and every statement.
        ``expensive``: it can take long on a healthy server.

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
        """Return for how many seconds an answer has been late; None where none is."""
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
            # The server counts and logs a client that closes during an answer as aborted.
            waits = not self._condition.wait_for(lambda: self._question is None, ANSWER_SECONDS)
            if self._socket is not None and waits:
                _cut(self._socket)
            worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(CUT_SECONDS if waits else QUIT_SECONDS)

    def _take_turn(self, question: _Question) -> None:
        """Wait for the turn while the query before is in time; fail at once where it is late."""
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
            # No caller waits any more: do not load a server that has just recovered.
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
                self._forget()  # unread rows of an answer may be in it

    def _connect(self) -> SqlSession:
        try:
            end = reach(self.login)
            with self._condition:
                if self._closed:
                    end.close()
                    raise ConnectError("the connection was closed")
                # TLS detaches the socket from `end`; this duplicate still refers to it.
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
        """Connect again at once, unless connections end soon again and again."""
        if time.monotonic() - self._connected_at > LONGEST_PAUSE:
            self._failure, self._pause = None, 0.0
        else:
            self._retry_later(error)

    def _retry_later(self, error: ConnectError) -> None:
        """Set the time of the next try; the pause grows with each failure."""
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

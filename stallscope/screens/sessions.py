# SPDX-License-Identifier: Apache-2.0
"""Which session each thread serves: asked at each capture, in a thread that nothing waits for."""

from __future__ import annotations

import threading
import time
from collections import deque

import msgspec

from stallscope.collectors.sql import servers
from stallscope.collectors.sql.failures import SqlError
from stallscope.collectors.sql.servers import ServerLogin
from stallscope.model.capture import Capture
from stallscope.model.sessions import Moment, Sessions, annotate, from_memory, redact
from stallscope.screens.events import Noted, Put, Rates, SourceState
from stallscope.server.statements import normalize

__all__ = ["Asking"]


RATES_SECONDS = 1.0
KILL_SECONDS = 5.0


class Asking:
    """A thread that reads the server's sessions on request; its last answer goes into the
    captures."""

    def __init__(self, login: ServerLogin, deadline: float) -> None:
        self._sql = servers.connect(login)
        self._connection = self._sql.connection
        self._deadline = deadline
        self._wanted = threading.Event()
        self._answered = threading.Event()
        self._closing = threading.Event()
        self._sessions: Sessions | None = None
        self._thread: threading.Thread | None = None
        self._kills: deque[str] = deque()
        self._fetch = False
        self._put: Put = lambda event: None

    def start(self, put: Put) -> None:
        """Start the thread; errors are given to ``put``."""
        self._put = put
        self._thread = threading.Thread(target=self._run, name="sql", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask now, while the stacks are taken."""
        self._answered.clear()
        self._fetch = True
        self._wanted.set()

    def into(self, capture: Capture, memory: tuple[Moment, ...]) -> Capture:
        """Return the capture with connections: from ``memory`` where no answer came in time."""
        sessions = self._sessions if self._answered.wait(self._deadline) else None
        if sessions is None and not memory:
            return capture
        if sessions is None:
            sessions = from_memory(memory, "the server did not answer in time")
        sessions = msgspec.structs.replace(sessions, memory=memory)
        return annotate(capture, redact(sessions, normalize))

    def kill(self, statement: str) -> None:
        """Send it before anything else is asked."""
        self._kills.append(statement)
        self._wanted.set()

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._closing.set()
        self._wanted.set()
        self._connection.close()
        if self._thread is not None:
            self._thread.join(1.0)

    def _send(self, statement: str) -> None:
        try:
            self._connection.ask(lambda session: session.run(statement), KILL_SECONDS, name="kill")
        except SqlError as error:
            self._put(Noted(f"{statement} was not done: {error}"))
        else:
            self._put(Noted(f"sent: {statement}"))

    def _read_rates(self) -> None:
        """Read what changes from second to second; an error is that of the sessions, too."""
        statement = self._sql.rates
        if statement is None:
            return
        try:
            rows = self._connection.ask(
                lambda session: session.select(statement), self._deadline, name="rates"
            )
        except SqlError:
            return
        found = {str(name): float(value) for name, value in rows}
        self._put(
            Rates(
                time.time(),
                found.get("Questions", 0.0) - self._connection.sent,
                max(0, int(found.get("Threads_running", 0.0)) - 1),
            )
        )

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait(RATES_SECONDS)
            self._wanted.clear()
            if self._closing.is_set():
                return
            while self._kills:
                self._send(self._kills.popleft())
            if not self._fetch:
                self._read_rates()
                continue
            self._fetch = False
            sessions = self._sql.fetch(self._deadline)
            said = "; ".join(filter(None, (sessions.reason, *sessions.notes)))
            self._put(SourceState("sql", said or None))
            self._sessions = sessions if sessions.reason is None else None
            self._answered.set()

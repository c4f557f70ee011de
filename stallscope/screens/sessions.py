# SPDX-License-Identifier: Apache-2.0
"""Which session each thread serves: asked at each capture, in a thread that nothing waits for."""

from __future__ import annotations

import threading

import msgspec

from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.sessions import fetch
from stallscope.model.capture import Capture
from stallscope.model.sessions import Moment, Sessions, annotate, from_memory, redact
from stallscope.screens.events import Put, SourceState
from stallscope.server.statements import normalize

__all__ = ["Asking"]


class Asking:
    """A thread that reads the server's sessions on request; its last answer goes into the
    captures."""

    def __init__(self, login: Login, deadline: float) -> None:
        self._connection = Connection(login)
        self._deadline = deadline
        self._wanted = threading.Event()
        self._answered = threading.Event()
        self._closing = threading.Event()
        self._sessions: Sessions | None = None
        self._thread: threading.Thread | None = None
        self._put: Put = lambda event: None

    def start(self, put: Put) -> None:
        """Start the thread; errors are given to ``put``."""
        self._put = put
        self._thread = threading.Thread(target=self._run, name="sql", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask now, while the stacks are taken."""
        self._answered.clear()
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

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._closing.set()
        self._wanted.set()
        self._connection.close()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            self._wanted.clear()
            if self._closing.is_set():
                return
            sessions = fetch(self._connection, self._deadline)
            said = "; ".join(filter(None, (sessions.reason, *sessions.notes)))
            self._put(SourceState("sql", said or None))
            self._sessions = sessions if sessions.reason is None else None
            self._answered.set()

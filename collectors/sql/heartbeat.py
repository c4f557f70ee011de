# SPDX-License-Identifier: Apache-2.0
"""How long the simplest of all statements takes: ``heartbeat.ms``. And what is known where it
fails, for a refusal is an answer: ``heartbeat.unanswered_ms``, ``login.connections_refused``, and
``login.code``, the server's number of the error.
"""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

from stallscope.base.text import one_line
from stallscope.collectors.sql import refusals
from stallscope.collectors.sql.asking import Asked, ServerConnection
from stallscope.collectors.sql.failures import LateError, SqlError
from stallscope.collectors.sql.servercollector import ServerCollector
from stallscope.model.samples import UNANSWERED, Sample

__all__ = ["Heartbeat"]

_GRACE = 0.5
"""The thread of a collector has so much longer than the question: who is late is the server."""
REST_SECONDS = 5.0
"""At rest: a server that does not answer the status is asked for this too, at once."""


class Beating(Asked, Protocol):
    """A session that knows the simplest statement of its server."""

    beat: str

    def run(self, sql: str) -> None: ...


S = TypeVar("S", bound=Beating)


class Heartbeat(ServerCollector[S]):
    """The time from the statement to its answer. The connection is its own: no other question can
    make a server that answers look as if it did not."""

    name = thread = "heartbeat"

    def __init__(self, connection: ServerConnection[S], deadline: float | None = None) -> None:
        self._seconds = self.default_deadline if deadline is None else deadline
        super().__init__(connection, self._seconds + _GRACE)

    @property
    def rest_interval(self) -> float:
        return REST_SECONDS

    def collect(self) -> Sample:
        """Take a sample; of a late answer, ``elapsed_ms`` says for how long it has been late. One
        that failed says why, and has the values that are known all the same: nothing of a socket
        that is gone, or of a login that is tried again later."""
        time_ns, clock_ns = time.time_ns(), time.monotonic_ns()
        try:
            values = self._connection.ask(self.read, self._seconds, name=self.name)
            error = None
        except SqlError as failure:
            values, error = self._known(failure), one_line(str(failure))
        elapsed_ms = (time.monotonic_ns() - clock_ns) / 1e6
        owed_ms = values.get(UNANSWERED, 0.0)
        return Sample(self.name, time_ns, clock_ns, values, max(elapsed_ms, owed_ms), error)

    def read(self, session: S) -> dict[str, float]:
        begin = time.monotonic_ns()
        session.run(session.beat)
        took_ms = (time.monotonic_ns() - begin) / 1e6
        return {"heartbeat.ms": took_ms, **refusals.ACCEPTED}

    def _known(self, failure: SqlError) -> dict[str, float]:
        if isinstance(failure, LateError):
            owed = self._connection.waiting_since()
            return {} if owed is None else {UNANSWERED: owed * 1e3}
        values = refusals.values(failure)
        return values | {UNANSWERED: 0.0} if values.get("login.connections_refused") else values

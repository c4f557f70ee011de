# SPDX-License-Identifier: Apache-2.0
"""How long the simplest of all statements takes: ``heartbeat.ms``."""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

from stallscope.collectors.sql.asking import Asked
from stallscope.collectors.sql.failures import LateError
from stallscope.collectors.sql.servercollector import ServerCollector
from stallscope.model.samples import Sample

__all__ = ["Heartbeat"]

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

    @property
    def rest_interval(self) -> float:
        return REST_SECONDS

    def collect(self) -> Sample:
        """Take a sample; of a late answer, ``elapsed_ms`` says for how long it has been late.

        Raises: SqlError, a sentence, where there is no server to wait for.
        """
        time_ns, clock_ns = time.time_ns(), time.monotonic_ns()
        try:
            return super().collect()
        except LateError as error:
            owed = self._connection.waiting_since() or 0.0
            return Sample(self.name, time_ns, clock_ns, elapsed_ms=owed * 1e3, error=str(error))

    def read(self, session: S) -> dict[str, float]:
        begin = time.monotonic_ns()
        session.run(session.beat)
        return {"heartbeat.ms": (time.monotonic_ns() - begin) / 1e6}

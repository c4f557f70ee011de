# SPDX-License-Identifier: Apache-2.0
"""The base of collectors of the ``sql`` thread, which take turns on one connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from stallscope.collectors.collector import sample
from stallscope.collectors.sql.asking import Asked, ServerConnection
from stallscope.model.samples import Sample

__all__ = ["ServerCollector"]

S = TypeVar("S", bound=Asked)


class ServerCollector(ABC, Generic[S]):
    """A collector (stallscope.collectors.collector) that asks a server.

    The caller owns the connection; closing a collector does not close it.
    """

    name: str
    thread: str = "sql"
    default_deadline: ClassVar[float] = 1.0

    def __init__(self, connection: ServerConnection[S], deadline: float | None = None) -> None:
        self._connection = connection
        self.deadline = self.default_deadline if deadline is None else deadline

    @property
    def interval(self) -> float:
        """Return the least seconds between two samples; at each poll if nothing else is said."""
        return 0.0

    @property
    def rest_interval(self) -> float:
        """Return the same at rest."""
        return 0.0

    def collect(self) -> Sample:
        """Ask once. Raises: SqlError, a sentence."""

        def ask(clock_ns: int) -> dict[str, float]:
            return self._connection.ask(self.read, self.deadline, name=self.name)

        return sample(self.name, ask)

    @abstractmethod
    def read(self, session: S) -> dict[str, float]:
        """Ask on an open session; return numbers by name."""

    def close(self) -> None:
        """Do nothing: the caller owns the connection."""

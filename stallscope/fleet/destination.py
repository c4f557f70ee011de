# SPDX-License-Identifier: Apache-2.0
"""What an engine is to those that ship, and to those that ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from stallscope.base.errors import StallscopeError
from stallscope.fleet.batch import Batch
from stallscope.fleet.dialect import Dialect

__all__ = ["Destination", "Engine", "EngineError"]


class EngineError(StallscopeError):
    """An engine cannot be reached, or refuses a question: which, why, and what to do."""


class Destination(Protocol):
    """Where batches go."""

    @property
    def shown(self) -> str:
        """Its address without user and password, for messages."""

    @property
    def skew_ms(self) -> float | None:
        """How far the engine's clock is ahead of this host's, at the latest answer."""

    @property
    def notes(self) -> Sequence[str]:
        """What it does not store of the rows that it takes: columns that its tables lack."""

    def send(self, batch: Batch) -> None:
        """Store all rows before this returns; the same batch again changes nothing.

        Raises: SendError.
        """

    def close(self) -> None: ...


class Engine(Protocol):
    """What answers SQL."""

    @property
    def shown(self) -> str: ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def notes(self) -> Sequence[str]:
        """What was left out of the answers: files that are torn, tables of another version."""

    def restrict(self, since_ms: int, until_ms: int) -> None:
        """Say which days the queries that follow are about: others need not be read."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query by column. Raises: EngineError."""

    def close(self) -> None: ...

# SPDX-License-Identifier: Apache-2.0
"""How long a server takes for what it is asked, and a table's figures of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from stallscope.collectors.sql.asking import Asked, ServerConnection
from tests.bench.stats import Figure, Row
from tests.support.servers import PATIENCE

__all__ = ["ask_ms", "median_of"]

S = TypeVar("S", bound=Asked)


def ask_ms(connection: ServerConnection[S], ask: Callable[[S], object]) -> float:
    """Ask once, and return how long that took in the connection's thread."""

    def timed(session: S) -> float:
        begun = time.perf_counter()
        ask(session)
        return (time.perf_counter() - begun) * 1e3

    return connection.ask(timed, PATIENCE)


def median_of(row: Row, column: str) -> float:
    """Return the median of a cell that has a figure."""
    cell = row.cells[column]
    assert isinstance(cell, Figure)
    return cell.median

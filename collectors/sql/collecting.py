# SPDX-License-Identifier: Apache-2.0
"""What collectors of MySQL and MariaDB share."""

from __future__ import annotations

import time

from stallscope.collectors.sql.failures import SqlError, StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.servercollector import ServerCollector
from stallscope.model.samples import Sample

__all__ = ["REST_SECONDS", "Infrequent", "SqlCollector", "number"]

REST_SECONDS = 30.0
"""At rest, from one statement to the next that takes a lock which statements of clients need
too: docs/sql.md has a table of them."""

SHARE = 0.01
"""The share of the time that a rarely asked collector may keep the server busy on average."""
RETRY_SECONDS = 3600.0
"""The pause before a statement that the server or the account does not allow is tried again."""

_WORDS = {"ON": 1.0, "YES": 1.0, "TRUE": 1.0, "OFF": 0.0, "NO": 0.0, "FALSE": 0.0}


class SqlCollector(ServerCollector[SqlSession]):
    """A collector that asks one of them."""


class Infrequent:
    """A collector whose statement is expensive, or not possible on every server.

    Its ``interval`` grows with the time of the last statement: one that is late counts as if
    it had taken its whole deadline.
    """

    def __init__(
        self, collector: SqlCollector, interval: float, rest_interval: float | None = None
    ) -> None:
        """``rest_interval``: at rest; without it, ``interval``."""
        self.name = collector.name
        self.thread = collector.thread
        self.deadline = collector.deadline
        self.interval = self._least = interval
        self._least_at_rest = interval if rest_interval is None else rest_interval
        self._collector = collector

    @property
    def rest_interval(self) -> float:
        """Return the least seconds between two statements at rest."""
        return max(self.interval, self._least_at_rest)

    def collect(self) -> Sample:
        """Collect, and adapt the interval. Raises: SqlError."""
        begun, least = time.monotonic(), self._least
        try:
            return self._collector.collect()
        except StatementError:
            least = RETRY_SECONDS
            raise
        except SqlError:
            least = max(least, self.deadline / SHARE)
            raise
        finally:
            self.interval = max(least, (time.monotonic() - begun) / SHARE)

    def close(self) -> None:
        """Close the collector."""
        self._collector.close()


def number(value: object) -> float | None:
    """Return a server's text as a number, None where it is none; ON is 1."""
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, str) or not value:
        return None
    try:
        found = float(value)
    except ValueError:
        return _WORDS.get(value.upper())
    return found if abs(found) < 1e300 else None

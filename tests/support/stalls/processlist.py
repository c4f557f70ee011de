# SPDX-License-Identifier: Apache-2.0
"""What the connections of a server run, also where its device does not answer."""

from __future__ import annotations

from tests.support.servers.sql import SqlServer

__all__ = ["running"]

# It takes no temporary table, as information_schema does: on such a device it may never be made.
PROCESSLIST = "SHOW FULL PROCESSLIST"
SECONDS, TEXT = 5, 7
"""Columns."""


def running(server: SqlServer, start: str, *, seconds: int = 0) -> int:
    """Return how many connections run a statement with this start, for so long at least."""
    return sum(
        str(row[TEXT]).startswith(start) and int(row[SECONDS] or 0) >= seconds
        for row in server.query(PROCESSLIST)
    )

# SPDX-License-Identifier: Apache-2.0
"""Changes that InnoDB delays, because purge has more to remove than it is allowed to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import open_transaction
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import at_rest
from tests.support.servers.waiting import wait_until
from tests.support.stalls.disk_load import PAUSE, loop_counted, loop_statements
from tests.support.stalls.processlist import running

__all__ = ["PURGE_LAG_OPTIONS", "old_snapshot", "purge_lag"]

PURGE_LAG_OPTIONS = (
    "--innodb-max-purge-lag=5",
    # Where it is known, 0 is no delay.
    "--loose-innodb-max-purge-lag-delay=2000000",
    # To 5.5: the master thread would purge only every ten seconds.
    "--innodb-purge-threads=1",
)
"""Options the server wants for this stall (later ones win)."""

ROWS = 100
# Each connection has a row of its own, so that none waits for another's.
UPDATE = f"UPDATE counts SET n = n + 1 WHERE id = CONNECTION_ID() % {ROWS}"


@contextmanager
def purge_lag(server: SqlServer, connections: int = 20, *, pause: bool = False) -> Iterator[None]:
    """Change rows from many connections, as fast as they can or with pauses."""
    _make_counts(server)
    statement = UPDATE + PAUSE if pause else UPDATE
    with loop_counted(server, statement, connections, "Com_update", 5 * connections):
        if not pause:
            wait_until(
                lambda: running(server, "UPDATE") >= connections * 3 // 4 and at_rest(server.pid),
                "they are delayed",
            )
        yield


@contextmanager
def old_snapshot(server: SqlServer, connections: int = 20) -> Iterator[None]:
    """Change rows while an idle transaction keeps purge from removing their old versions.

    MySQL 5.5 delays nobody for as long as there is such a transaction.
    """
    _make_counts(server)
    with (
        open_transaction(server, "disk", "SELECT COUNT(*) FROM counts"),
        loop_statements(
            server,
            UPDATE,
            connections,
            lambda: running(server, "UPDATE", seconds=1) >= connections * 3 // 4,
            f"{connections} connections are delayed",
        ),
    ):
        yield


def _make_counts(server: SqlServer) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS disk")
    server.execute(
        "CREATE TABLE counts (id INT PRIMARY KEY, n INT) ENGINE=InnoDB",
        f"INSERT INTO counts VALUES {', '.join(f'({row}, 0)' for row in range(ROWS))}",
        database="disk",
    )

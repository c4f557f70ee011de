# SPDX-License-Identifier: Apache-2.0
"""Backends of PostgreSQL that queue for the list of running transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.pgclients import bench, sessions_in
from tests.support.servers.postgres import Postgres
from tests.support.stalls.postgres_locks import running

__all__ = ["SNAPSHOT_SETTINGS", "snapshots", "snapshots_fixed"]

SNAPSHOT_SETTINGS = ("max_connections=200", "synchronous_commit=off")

SETUP = (
    "CREATE TABLE part (v int)",
    # As many subtransactions as one list entry has room for.
    "CREATE FUNCTION subtransactions() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
    " FOR number IN 1..60 LOOP BEGIN INSERT INTO part VALUES (number);"
    " EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$",
    # In the server, so that clients that want a CPU do not keep it from its work.
    "CREATE PROCEDURE transactions() LANGUAGE plpgsql AS $$ BEGIN"
    " LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$",
)
OPEN = "BEGIN;\nSELECT subtransactions();\n\\sleep 2000 s\n"
OPEN_TRANSACTIONS = 64
WAITS = "lower(wait_event) IN ('procarray', 'procarraygroupupdate', 'xidgen')"


@contextmanager
def snapshots(server: Postgres, clients: int = 40) -> Iterator[None]:
    """Start and end transactions as fast as can be, while others with subtransactions stay open."""
    server.execute(*SETUP)
    idle = "state = 'idle in transaction'"
    with (
        bench(
            server,
            OPEN,
            OPEN_TRANSACTIONS,
            lambda: sessions_in(server, idle) == OPEN_TRANSACTIONS,
            "transactions are open",
        ),
        bench(
            server,
            "CALL transactions();",
            clients,
            lambda: sessions_in(server, WAITS) >= clients * 3 // 4,
            "most wait for the list of transactions",
        ),
    ):
        yield


@contextmanager
def snapshots_fixed(server: Postgres, clients: int = 4) -> Iterator[None]:
    """Run such transactions from few connections, and leave none open."""
    with running(server, clients, "SELECT txid_current();"):
        yield

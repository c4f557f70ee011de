# SPDX-License-Identifier: Apache-2.0
"""Servers start, work and end with the library inside as they do without."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pymysql
import pytest

from stallscope.collectors import rings as find_rings
from tests.support.chance import SEED
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer, wait_until
from tests.support.servers.inside import LIBRARY, RINGS, agent_inside, one_ring
from tests.support.stalls import sysbench_load

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "library", "sysbench")]

SERVERS: Mapping[str, Callable[[], SqlServer]] = {
    "mariadb": MariaDB,
    "mysql55": MySQL55,
    "mysql97": MySQL97,
}
THREADS = 16
TRANSACTIONS = 300
CONNECTIONS = 200


@pytest.fixture(
    params=[
        "mariadb",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("mysql55", "mysql97")),
    ]
)
def server(request: pytest.FixtureRequest, require: Callable[..., None]) -> SqlServer:
    require(request.param)
    return SERVERS[request.param]()


def change_connections(server: SqlServer, count: int) -> None:
    """Open and close connections in random order, so that threads come and go."""
    chance = random.Random(SEED)
    there: list[pymysql.Connection[pymysql.cursors.Cursor]] = []
    for _ in range(count):
        there.append(server.connect())
        if len(there) > THREADS:
            there.pop(chance.randrange(len(there))).close()
    for connection in there:
        connection.close()


def test_a_server_works_and_shuts_down_with_it(server: SqlServer) -> None:
    with agent_inside(server, STALLSCOPE_THRESHOLD="lock=1,sync=1,space=1,io=1") as rings, server:
        assert LIBRARY in Path(f"/proc/{server.pid}/maps").read_text()
        before = server.status("Aborted_connects")
        with sysbench_load(server, THREADS) as load:
            started = server.status("Com_commit")
            change_connections(server, CONNECTIONS)
            wait_until(
                lambda: server.status("Com_commit") >= started + TRANSACTIONS,
                f"{TRANSACTIONS} transactions",
            )
            assert load.running()
            # No statement failed but those that lost a deadlock, which sysbench runs again.
            assert "FATAL" not in load.log.read_text()
        assert server.status("Aborted_connects") == before
        ring = find_rings.read(one_ring(rings))
        assert ring.waits > TRANSACTIONS
        server.shut_down()
        # It has ended normally, and has removed its ring.
        assert list(rings.glob(RINGS)) == []
        log = server.log.read_text(errors="replace")
        assert [line for line in log.splitlines() if line.startswith("stallscope:")] == []
        assert "got signal" not in log

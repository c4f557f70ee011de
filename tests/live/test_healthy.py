# SPDX-License-Identifier: Apache-2.0
"""A healthy server has no stall."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import SqlServer
from servers.clients import idle_connections
from stalls import sysbench_load

from tests.live.shots import take, unharmed

pytestmark = pytest.mark.needs("root", "bpf")

CAPTURES = 5
RATE = 20
"""Transactions a second, of 20 statements each: a small part of what one CPU does."""


@pytest.fixture(params=["mariadb", "mysql55", "mysql97"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, SqlServer)
    return found


def test_idle(server: SqlServer, tmp_path: Path) -> None:
    with idle_connections(server, 20), unharmed(server):
        for _ in range(CAPTURES):
            shot = take(tmp_path, "-p", server.pid)
            assert shot.analysis["findings"] == []
            assert shot.analysis["threads"]["idle"] >= 20


@pytest.mark.needs("sysbench")
def test_busy(server: SqlServer, tmp_path: Path) -> None:
    with sysbench_load(server, 8, "oltp_read_write", f"--rate={RATE}"), unharmed(server):
        for _ in range(CAPTURES):
            shot = take(tmp_path, "-p", server.pid)
            assert shot.analysis["findings"] == []

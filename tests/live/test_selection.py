# SPDX-License-Identifier: Apache-2.0
"""Two servers on one host are distinguished; the wrong one is never taken silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.shots import run, take
from tests.support.servers import MariaDB

pytestmark = pytest.mark.needs("root", "probe", "mariadb")


def test_two_servers(mariadb: MariaDB, tmp_path: Path) -> None:
    with MariaDB() as other:
        done = run("snap", "-p", "mariadbd")
        assert done.returncode in (1, 2)
        assert len(done.stderr.strip().splitlines()) == 1
        for server in (mariadb, other):
            assert f"pid {server.pid}" in done.stderr
            assert str(server.socket) in done.stderr
        for server in (mariadb, other):
            by_socket = take(tmp_path, "-p", "mariadbd", "--socket", server.socket)
            assert [p.pid for p in by_socket.capture.processes] == [server.pid]
            by_folder = take(tmp_path, "-p", "mariadbd", "--datadir", server.data)
            assert [p.pid for p in by_folder.capture.processes] == [server.pid]


def test_no_such_server(mariadb: MariaDB) -> None:
    done = run("snap", "-p", "mariadbd", "--socket", "/nowhere/s.sock")
    assert done.returncode in (1, 2)
    assert len(done.stderr.strip().splitlines()) == 1
    assert run("snap", "-p", mariadb.pid, "--socket", "/nowhere/s.sock").returncode in (1, 2)

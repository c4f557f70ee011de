# SPDX-License-Identifier: Apache-2.0
"""What a real server is charged with is found at its files, and its commits at their syncs."""

from __future__ import annotations

import pytest

from tests.bench.probes import DURABLE
from tests.support.counting import Counting
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer

pytestmark = pytest.mark.needs("root", "waits")

COMMITS = 100
MOST_ELSEWHERE = 0.03
"""Of what is charged between the start and the first line, and at the end."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MariaDB, marks=pytest.mark.needs("mariadb")),
        pytest.param(MySQL55, marks=pytest.mark.needs("mysql55")),
        pytest.param(MySQL97, marks=pytest.mark.needs("mysql97")),
    ],
)
def test_commits_and_bytes_of_a_server(kind: type[SqlServer]) -> None:
    with kind(DURABLE) as server:
        server.execute(
            "CREATE DATABASE diary",
            "CREATE TABLE diary.days (day INT PRIMARY KEY AUTO_INCREMENT, text VARCHAR(500))"
            " ENGINE=InnoDB",
        )
        aborted = server.status("Aborted_clients")
        with Counting(server.pid) as counting:
            for _ in range(COMMITS):
                server.execute("INSERT INTO diary.days (text) VALUES (REPEAT('x', 400))")
            final = counting.finish()
        assert server.status("Aborted_clients") == aborted
    redo = [one for one in final.files if one.file_class == "redo"]
    assert sum(one.syncs for one in redo) >= COMMITS
    assert sum(one.requests for one in redo) >= COMMITS
    assert all((one.path or "").startswith("/") for one in final.files if not one.metadata)
    assert final.io is not None
    charged = sum(one.charged_bytes or 0 for one in final.files)
    assert abs(charged - final.io.write_bytes) <= MOST_ELSEWHERE * final.io.write_bytes
    assert not any(final.lost.values())

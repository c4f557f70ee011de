# SPDX-License-Identifier: Apache-2.0
"""Connections that come, go and change at random: nothing of them that is read is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import introspection_mysql
from tests.bench.introspection import Measured, Sizes, measure_mysql, measure_postgres
from tests.bench.introspection_compare import Outcome
from tests.support.chance import SEED
from tests.support.servers import MEMORY, MariaDB, Postgres
from tests.support.servers.ports import free_port

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "bpf")

SMALL = Sizes(connections=30, seconds=4.0, captures=12, calibrations=1)


def check(found: Measured) -> None:
    assert sum(found.tally.connections.values()) > SMALL.connections
    assert found.tally.connections[Outcome.WRONG] == 0, found.tally.examples
    assert found.tally.fields["connection"][Outcome.MISSING] == 0
    assert found.tally.connections[Outcome.RIGHT] > found.tally.connections[Outcome.MISSING]


@pytest.mark.needs("mariadb")
def test_mariadb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    port = free_port()
    server = MariaDB(*introspection_mysql.options(port), parent=MEMORY)
    found = measure_mysql(server, port, SMALL, SEED)
    check(found)
    assert len(found.calibrations) == len(found.checks_ms) == 1


@pytest.mark.needs("postgres")
def test_postgres() -> None:
    check(measure_postgres(Postgres, SMALL, SEED))

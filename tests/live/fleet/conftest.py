# SPDX-License-Identifier: Apache-2.0
"""Engines that tests of the fleet share; each test has a database of its own in them."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.fleet.places import Place
from tests.support.fleet.chdbengine import ChdbServer
from tests.support.fleet.clickhouse import ClickHouse
from tests.support.fleet.cluster import CLUSTER, Cluster
from tests.support.servers import MEMORY

__all__: list[str] = []

_numbers = itertools.count()


@pytest.fixture(scope="session")
def _memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stallscope-fleet-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def clickhouse(_memory: Path, require: Callable[..., None]) -> Iterator[ClickHouse]:
    """Return the distribution's server, which no test ends."""
    require("clickhouse")
    with ClickHouse(_memory / "node") as server:
        yield server


@pytest.fixture(scope="session")
def cluster(_memory: Path, require: Callable[..., None]) -> Iterator[Cluster]:
    """Return two shards of two replicas; all run when a test begins, and when it ends."""
    require("clickhouse-cluster")
    with Cluster(_memory / "cluster") as found:
        yield found


@pytest.fixture(scope="session")
def chdb(_memory: Path, require: Callable[..., None]) -> Iterator[ChdbServer]:
    """Return today's engine."""
    require("chdb")
    with ChdbServer(_memory / "chdb") as server:
        yield server


@pytest.fixture
def database() -> str:
    """Return a name that no other test has."""
    return f"test_{os.getpid()}_{next(_numbers)}"


@pytest.fixture
def node(clickhouse: ClickHouse, database: str) -> Iterator[Place]:
    """Return a database of the distribution's server."""
    yield Place(clickhouse.url.replace("/stallscope", f"/{database}"))
    clickhouse.query(f"DROP DATABASE IF EXISTS {database}")


@pytest.fixture(params=["node", "cluster", pytest.param("chdb", marks=pytest.mark.nightly)])
def place(request: pytest.FixtureRequest, database: str) -> Iterator[Place]:
    """Return a database of each engine in turn."""
    server = request.getfixturevalue("clickhouse" if request.param == "node" else request.param)
    name = CLUSTER if request.param == "cluster" else ""
    found = Place(server.url.replace("/stallscope", f"/{database}"), name)
    yield found
    on = f" ON CLUSTER {name}" if name else ""
    found.statement(f"DROP DATABASE IF EXISTS {database}{on}")

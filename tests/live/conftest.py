# SPDX-License-Identifier: Apache-2.0
"""Servers that tests share: a test that stops one, or changes what others see, has its own.

Each process of pytest has one of each kind, from when a test first asks for it.

They wait for no disk, whose stalls would be theirs. MariaDB maps a log that lies in memory, and has
no sync of it that could be watched: tests of that have one on the disk.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.servers import (
    MEMORY,
    Late,
    MariaDB,
    MySQL55,
    MySQL97,
    Postgres,
    SqlServer,
    wait_until,
)

__all__: list[str] = []

CLIENTS_END = 30.0
"""Seconds at most; a fixture of a module may have connections that stay."""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that the servers' user can enter too, with a short path for sockets.

    What the test makes in it must be gone at its end.
    """
    folder = Path(tempfile.mkdtemp(prefix="stallscope-test-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    left = sorted(path.name for path in folder.iterdir())
    shutil.rmtree(folder)
    assert left == []


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test learns of a server from the next: a calibration changes what is found."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="session")
def shared_servers() -> list[SqlServer]:
    """Return the servers that tests share, as far as they were started."""
    return []


@pytest.fixture(autouse=True)
def _clients_gone(shared_servers: list[SqlServer]) -> Iterator[None]:
    """Wait until a server has seen that clients of the test have ended: the next test counts them.

    Those that were killed have said nothing to it.
    """
    before = [(server, server.connection_ids()) for server in shared_servers]
    yield
    for server, ids in before:
        with suppress(Late):
            wait_until(partial(has_only, server, ids), "its clients are gone", CLIENTS_END)


def has_only(server: SqlServer, ids: frozenset[int]) -> bool:
    """Return whether a server has no connections but these."""
    return server.connection_ids() <= ids


@pytest.fixture(scope="session")
def mariadb(require: Callable[..., None], shared_servers: list[SqlServer]) -> Iterator[MariaDB]:
    require("mariadb")
    with MariaDB(parent=MEMORY) as server:
        shared_servers.append(server)
        yield server
        shared_servers.remove(server)


@pytest.fixture(scope="session")
def mysql55(require: Callable[..., None], shared_servers: list[SqlServer]) -> Iterator[MySQL55]:
    require("mysql55")
    with MySQL55(parent=MEMORY) as server:
        shared_servers.append(server)
        yield server
        shared_servers.remove(server)


@pytest.fixture(scope="session")
def mysql97(require: Callable[..., None], shared_servers: list[SqlServer]) -> Iterator[MySQL97]:
    require("mysql97")
    with MySQL97("--innodb-flush-method=nosync") as server:
        shared_servers.append(server)
        yield server
        shared_servers.remove(server)


@pytest.fixture(scope="session")
def postgres(require: Callable[..., None]) -> Iterator[Postgres]:
    require("postgres")
    with Postgres() as server:
        yield server


@pytest.fixture(params=["mariadb", "mysql55", "mysql97"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    """Return each of the servers in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, SqlServer)
    return found

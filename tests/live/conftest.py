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
from pathlib import Path

import pytest

from tests.support.servers import MEMORY, MariaDB, MySQL55, MySQL97, Postgres

__all__: list[str] = []


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


@pytest.fixture(scope="session")
def mariadb(require: Callable[..., None]) -> Iterator[MariaDB]:
    require("mariadb")
    with MariaDB(parent=MEMORY) as server:
        yield server


@pytest.fixture(scope="session")
def mysql55(require: Callable[..., None]) -> Iterator[MySQL55]:
    require("mysql55")
    with MySQL55(parent=MEMORY) as server:
        yield server


@pytest.fixture(scope="session")
def mysql97(require: Callable[..., None]) -> Iterator[MySQL97]:
    require("mysql97")
    with MySQL97("--innodb-flush-method=nosync") as server:
        yield server


@pytest.fixture(scope="session")
def postgres(require: Callable[..., None]) -> Iterator[Postgres]:
    require("postgres")
    with Postgres() as server:
        yield server

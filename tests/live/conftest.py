# SPDX-License-Identifier: Apache-2.0
"""Servers that the tests of one module share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers import MariaDB, MySQL55, MySQL97, Postgres

__all__: list[str] = []


@pytest.fixture(scope="module")
def mariadb(require: Callable[..., None]) -> Iterator[MariaDB]:
    require("mariadb")
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="module")
def mysql55(require: Callable[..., None]) -> Iterator[MySQL55]:
    require("mysql55")
    with MySQL55() as server:
        yield server


@pytest.fixture(scope="module")
def mysql97(require: Callable[..., None]) -> Iterator[MySQL97]:
    require("mysql97")
    with MySQL97() as server:
        yield server


@pytest.fixture(scope="module")
def postgres(require: Callable[..., None]) -> Iterator[Postgres]:
    require("postgres")
    with Postgres() as server:
        yield server

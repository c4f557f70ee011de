# SPDX-License-Identifier: Apache-2.0
"""All connections of a server are used: clients and our own login are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import psycopg
import pymysql
from pymysql.constants import ER

from tests.support.servers.clients import idle_connections
from tests.support.servers.postgres import Postgres
from tests.support.servers.sql import SqlServer

__all__ = [
    "POSTGRES_OPTIONS",
    "USED_UP_OPTIONS",
    "backends_used_up",
    "backends_used_up_fixed",
    "connections_used_up",
    "connections_used_up_fixed",
]

Client = TypeVar("Client")

LIMIT = 40
POSTGRES_LIMIT = 23
POSTGRES_OPTIONS = (f"max_connections={POSTGRES_LIMIT}", "superuser_reserved_connections=3")
USED_UP_OPTIONS = (f"--max-connections={LIMIT}",)
ROOM = 10


@contextmanager
def connections_used_up(server: SqlServer) -> Iterator[None]:
    """Take every connection that is free, the administrator's too, and let them idle."""
    with ExitStack() as clients:
        while (client := _free(server.connect)) is not None:
            clients.enter_context(closing(client))
        yield


@contextmanager
def connections_used_up_fixed(server: SqlServer) -> Iterator[None]:
    """Leave some free."""
    with idle_connections(server, LIMIT - ROOM):
        yield


@contextmanager
def backends_used_up(server: Postgres) -> Iterator[None]:
    """Take every connection of a PostgreSQL that is free, those of superusers too."""
    with ExitStack() as clients:
        while (client := _free(lambda: _connect(server))) is not None:
            clients.enter_context(closing(client))
        yield


@contextmanager
def backends_used_up_fixed(server: Postgres) -> Iterator[None]:
    """Leave some free."""
    with ExitStack() as clients:
        for _ in range(POSTGRES_LIMIT - ROOM):
            clients.enter_context(closing(_connect(server)))
        yield


def _connect(server: Postgres) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(host=str(server.folder), user="postgres", dbname="postgres")


def _free(connect: Callable[[], Client]) -> Client | None:
    """Return a new connection, None where no connection is free."""
    try:
        return connect()
    except pymysql.err.OperationalError as error:
        if error.args[0] != ER.CON_COUNT_ERROR:
            raise
    except psycopg.OperationalError as error:
        if "too many clients" not in str(error):
            raise
    return None

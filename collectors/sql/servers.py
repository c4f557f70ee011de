# SPDX-License-Identifier: Apache-2.0
"""Asking a server for its sessions, whichever server it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stallscope.collectors.sql.asking import ServerConnection
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.postgres_login import PostgresLogin
from stallscope.model.sessions import Sessions

__all__ = ["FAMILIES", "ServerLogin", "Sql", "connect"]

ServerLogin = Login | PostgresLogin

FAMILIES = ("mysql", "mariadb", "postgres")
"""Servers that are asked over SQL (stallscope.server.families)."""


class Sql(msgspec.Struct, frozen=True):
    """A connection, and the questions to its server."""

    connection: ServerConnection[Any]
    fetch: Callable[[float], Sessions]
    """Returns all sessions and lock waits, within so many seconds; it raises nothing."""
    first: Callable[[Any], object]
    """A small question on an open session, of which the answer is dropped."""
    rates: str | None = None
    """The statement whose answer is drawn over time."""
    rights: str = ""
    """How an account gets what is needed."""


def connect(login: ServerLogin) -> Sql:
    """Return a connection, which logs in with the first question."""
    # Imported here: who asks one server needs no package of the other's.
    if isinstance(login, PostgresLogin):
        from stallscope.collectors.sql import postgres_sessions
        from stallscope.collectors.sql.postgres_session import PostgresConnection

        other = PostgresConnection(login)
        return Sql(
            other,
            lambda seconds: postgres_sessions.fetch(other, seconds),
            postgres_sessions.read_sessions,
            rights="see docs/sql.md, section PostgreSQL",
        )
    from stallscope.collectors.sql import perf_threads, sessions
    from stallscope.collectors.sql.connection import Connection
    from stallscope.collectors.sql.status import RATES

    connection = Connection(login)
    return Sql(
        connection,
        lambda seconds: sessions.fetch(connection, seconds),
        perf_threads.read_sessions,
        RATES,
        rights="see docs/sql.md, section Rights",
    )

# SPDX-License-Identifier: Apache-2.0
"""Settings that say whether a PostgreSQL lets clients in, and lets them write."""

from __future__ import annotations

from stallscope.collectors.sql.asking import ServerConnection
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.postgres_session import PostgresSession
from stallscope.collectors.sql.servercollector import ServerCollector
from stallscope.collectors.sql.writable import Writable

__all__ = ["PostgresSettings", "read"]

SECONDS = 5.0
AGENT = 2
"""Connections of the agent, which the numbers of ``backends`` leave out."""
# In this session transactions are read-only: the setting of others is in pg_settings.
SETTINGS = """\
SELECT pg_catalog.current_setting('max_connections'),
pg_catalog.current_setting('superuser_reserved_connections'),
coalesce(pg_catalog.current_setting('reserved_connections', true), '0'),
(SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only'),
pg_catalog.pg_is_in_recovery()"""


class PostgresSettings(ServerCollector[PostgresSession]):
    """``settings.max_connections``, ``.client_connections`` (how many of those others than
    superusers get, and the agent does not hold), ``.default_transaction_read_only``,
    ``.in_recovery`` and ``.became_read_only``.

    It is asked on the connection of the heartbeat, the only one that is there at rest.
    """

    name = thread = "settings"

    def __init__(
        self, connection: ServerConnection[PostgresSession], deadline: float | None = None
    ) -> None:
        super().__init__(connection, deadline)
        self._writable = Writable()

    @property
    def interval(self) -> float:
        return SECONDS

    @property
    def rest_interval(self) -> float:
        return SECONDS

    def read(self, session: PostgresSession) -> dict[str, float]:
        found = read(session, AGENT)
        refuses = found["settings.default_transaction_read_only"] or found["settings.in_recovery"]
        return {**found, **self._writable.since(bool(refuses))}


def read(session: PostgresSession, own: int) -> dict[str, float]:
    """Return the settings once; ``own``: connections of this program. Raises: SqlError."""
    row = (session.select(SETTINGS) or [[]])[0]
    try:
        most, superusers, reserved = (float(text or "") for text in row[:3])
        refuses, recovering = (text in ("on", "t", "true") for text in row[3:])
    except ValueError as error:
        raise StatementError("the answer to its settings cannot be read", 0) from error
    return {
        "settings.max_connections": most,
        "settings.client_connections": most - superusers - reserved - own,
        "settings.default_transaction_read_only": float(refuses),
        "settings.in_recovery": float(recovering),
    }

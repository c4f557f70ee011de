# SPDX-License-Identifier: Apache-2.0
"""What the backends of a PostgreSQL do, by pg_stat_activity: for the collector ``backends``."""

from __future__ import annotations

from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.postgres_session import PostgresSession

__all__ = ["read_backends"]

MAX_BACKENDS = 20_000
BACKENDS = """\
SELECT pid, state, wait_event_type FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'client backend' AND application_name IS DISTINCT FROM 'stallscope'"""
_LOCK = "Lock"
_ACTIVITIES = {"active": "active", "fastpath function call": "active", "idle": "idle"}
_IN_TRANSACTION = "idle in transaction"


def read_backends(session: PostgresSession) -> dict[int, str]:
    """Return what each backend of a client does, as its title says it: ``idle``,
    ``idle_in_transaction``, ``active`` or ``waiting``.

    Raises: StatementError where the role may not see it, or another SqlError.
    """
    found = {}
    for pid, state, wait in session.select(BACKENDS, max_rows=MAX_BACKENDS):
        if state is None:
            raise StatementError("the sessions of others are hidden: GRANT pg_monitor", 0)
        if wait == _LOCK:
            doing = "waiting"
        elif state.startswith(_IN_TRANSACTION):
            doing = "idle_in_transaction"
        else:
            doing = _ACTIVITIES.get(state, "")
        if doing and pid is not None:
            found[int(pid)] = doing
    return found

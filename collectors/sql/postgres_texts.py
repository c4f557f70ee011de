# SPDX-License-Identifier: Apache-2.0
"""What a PostgreSQL says of its sessions in a stall, as texts for people; no data is in them."""

from __future__ import annotations

from collections import Counter
from functools import partial

from stallscope.collectors.sql.failures import LateError
from stallscope.collectors.sql.postgres_session import PostgresConnection
from stallscope.collectors.sql.postgres_sessions import fetch
from stallscope.collectors.sql.sessiontexts import Texts, lock_waits_text, processlist_text
from stallscope.server.statements import normalize

__all__ = ["fetch_texts"]

SECONDS = 2.0


def fetch_texts(connection: PostgresConnection) -> Texts:
    """Ask once, and return both texts. Raises: SqlError where the server says nothing."""
    known = fetch(connection, SECONDS)
    if known.reason is not None:
        raise LateError(known.reason)
    without_data = partial(
        normalize,
        ansi_quotes=known.ansi_quotes,
        no_backslash_escapes=known.no_backslash_escapes,
    )
    counts: Counter[tuple[str, str, str]] = Counter()
    longest: dict[tuple[str, str, str], int] = {}
    for session in known.sessions:
        if not session.own:
            key = (session.command or "", session.state or "", session.statement or "")
            counts[key] += 1
            longest[key] = max(longest.get(key, 0), round(session.seconds or 0))
    return Texts(
        {
            "processlist": processlist_text(counts, longest, without_data),
            "lock-waits": lock_waits_text(known, without_data),
        }
    )

# SPDX-License-Identifier: Apache-2.0
"""Owners of the locks of GET_LOCK(), where the server's tables do not list them.

The text of a waiting statement has the lock's name, and ``IS_USED_LOCK()`` says whose it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from stallscope.collectors.sql.protocol import SqlSession
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait, Session

__all__ = ["SHOWN", "USER_LOCK", "read_user_lock_waits"]

USER_LOCK = "User lock"
"""The state of a session that waits in GET_LOCK(): it waits for a metadata lock as well."""
IS_USED = "SELECT IS_USED_LOCK(%s)"
MAX_NAMES = 5
"""The most locks whose owner is queried: those with most waiters."""
MAX_TEXT = 10_000
SHOWN = "GET_LOCK(?)"
"""In place of a lock's name: it is a literal of a statement."""

_NAME = re.compile(
    r"\bGET_LOCK\s{0,8}\(\s{0,8}(?:'([^'\\]+)'|\"([^\"\\]+)\")\s{0,8},", re.IGNORECASE
)


def read_user_lock_waits(
    session: SqlSession, sessions: Sequence[Session], known: Collection[int]
) -> list[LockWait]:
    """Return one wait for each connection in GET_LOCK() that is not among ``known``.

    Raises: StatementError.
    """
    names = {
        s.connection: name
        for s in sessions
        if s.state == USER_LOCK and s.connection not in known and (name := _name(s.statement))
    }
    found = []
    for name, _ in Counter(names.values()).most_common(MAX_NAMES):
        owner = session.select(IS_USED, [name], max_rows=1)[0][0]
        if owner is None:
            continue
        found += [
            LockWait(LockKind.METADATA, waiter, int(owner), SHOWN, "EXCLUSIVE")
            for waiter, wanted in names.items()
            if wanted == name and waiter != int(owner)
        ]
    return found


def _name(statement: str | None) -> str | None:
    """Return the name of the one lock that a statement asks for, if its text has it."""
    names = {single or double for single, double in _NAME.findall((statement or "")[:MAX_TEXT])}
    return names.pop() if len(names) == 1 else None

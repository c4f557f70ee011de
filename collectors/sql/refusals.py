# SPDX-License-Identifier: Apache-2.0
"""What a server says by refusing a login: it is alive, and why nobody gets in."""

from __future__ import annotations

from stallscope.collectors.sql.failures import ConnectError, LateError, SqlError

__all__ = ["ACCEPTED", "values"]

ACCEPTED = {"login.code": 0.0, "login.connections_refused": 0.0}
"""The same of a login that works."""


def values(error: SqlError, *, old: bool = False) -> dict[str, float]:
    """Return ``login.code``, the server's number of the error, and ``login.connections_refused``
    of an answer to a login, or ``login.unanswered_s`` where there is none yet; else nothing.
    ``old``: the answer to a try before, which is repeated later, counts too."""
    if isinstance(error, LateError) and error.login_seconds is not None:
        return {"login.unanswered_s": error.login_seconds}
    if not isinstance(error, ConnectError) or (error.is_old and not old):
        return {}
    found = {} if error.number is None else {"login.code": float(error.number)}
    return found | {"login.connections_refused": 1.0} if error.full else found

# SPDX-License-Identifier: Apache-2.0
"""The errors of queries; the text of each is one sentence for people."""

from __future__ import annotations

from stallscope.base.errors import StallscopeError

__all__ = [
    "NO_SUCH_TABLE",
    "AbortedLoginError",
    "ConnectError",
    "LateError",
    "RefusedError",
    "SqlError",
    "StatementError",
]

NO_SUCH_TABLE = frozenset({1109, 1146})
"""Numbers of StatementError: the server does not have the table, or not in this version."""


class SqlError(StallscopeError):
    """A query failed."""


class LateError(SqlError):
    """There is no answer yet; a later one is dropped."""

    def __init__(self, message: str, login_seconds: float | None = None) -> None:
        """``login_seconds``: for how long the login has had no answer; None: it is another question
        that has none."""
        super().__init__(message)
        self.login_seconds = login_seconds


class ConnectError(SqlError):
    """There is no connection, and the next try is later."""

    def __init__(self, message: str, *, number: int | None = None, full: bool = False) -> None:
        """``number``: the server's own, where it refused. ``full``: no connection is free."""
        super().__init__(message)
        self.number = number
        self.full = full
        self.is_old = False
        """It is the failure of an earlier try, and says nothing about now."""


class RefusedError(ConnectError):
    """The server refused the account: trying again soon would only fill its log."""


class AbortedLoginError(RefusedError):
    """This side ended the login before the server could refuse it: the server counts that, and
    after max_connect_errors of them it refuses all clients of this host."""


class StatementError(SqlError):
    """The server answered a statement with an error."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

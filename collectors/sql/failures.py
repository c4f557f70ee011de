# SPDX-License-Identifier: Apache-2.0
"""What can go wrong when a server is asked; each is one sentence for people."""

from __future__ import annotations

from stallscope.base.errors import StallscopeError

__all__ = ["ConnectError", "LateError", "RefusedError", "SqlError", "StatementError"]


class SqlError(StallscopeError):
    """The server did not give what it was asked for."""


class LateError(SqlError):
    """There is no answer yet; what comes later is dropped."""


class ConnectError(SqlError):
    """There is no connection, and none is tried before its time."""


class RefusedError(ConnectError):
    """The server refused the account: trying again soon would only fill its log."""


class StatementError(SqlError):
    """The server answered a statement with an error."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

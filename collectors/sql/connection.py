# SPDX-License-Identifier: Apache-2.0
"""A connection to MySQL or MariaDB: stallscope.collectors.sql.asking has its deadlines."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from stallscope.collectors.sql.asking import ServerConnection
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import SqlSession, connect, reach
from stallscope.collectors.sql.retries import LoginRetries

__all__ = ["Connection"]


class Connection(ServerConnection[SqlSession]):
    """A connection by a login of MySQL and MariaDB."""

    def __init__(
        self,
        login: Login,
        *,
        retries: LoginRetries | None = None,
        lives: Callable[[float], bool] = lambda since: False,
    ) -> None:
        super().__init__(login.where, lambda: _Socket(login), retries=retries, lives=lives)
        self.login = login


class _Socket:
    """The open socket of a login."""

    def __init__(self, login: Login) -> None:
        """Raises: ConnectError."""
        self._login = login
        self._end = reach(login)
        # TLS detaches the socket from `_end`; this duplicate still refers to it.
        self._same = self._end.dup()

    def login(self) -> SqlSession:
        return connect(self._login, self._end)

    def cut(self) -> None:
        # close(2) would leave a thread in its read; shutdown(2) ends the read.
        with contextlib.suppress(OSError, ValueError):
            self._same.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._same.close()
        self._end.close()

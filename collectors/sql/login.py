# SPDX-License-Identifier: Apache-2.0
"""How to log in to a server: the result of all options."""

from __future__ import annotations

import os
import pwd

import msgspec

from stallscope.collectors.sql.peers import Peer

__all__ = ["DEFAULT_PORT", "TLS_MODES", "Login", "Tls", "default_user"]

TLS_MODES = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
DEFAULT_PORT = 3306


class Tls(msgspec.Struct, frozen=True):
    """``mode`` is one of TLS_MODES; ``preferred`` takes what the server offers, unverified."""

    mode: str = "preferred"
    ca: str | None = None
    capath: str | None = None
    cert: str | None = None
    key: str | None = None
    cipher: str | None = None
    crl: str | None = None

    @property
    def demanded(self) -> bool:
        return self.mode not in ("disabled", "preferred")


class Login(msgspec.Struct, frozen=True):
    """By ``socket`` where there is one, else by TCP to ``host``."""

    user: str
    password: str | None = None
    socket: str | None = None
    socket_shown: str | None = None
    """The socket's path for messages, where ``socket`` is a path through /proc."""
    host: str | None = None
    port: int = DEFAULT_PORT
    tls: Tls = Tls()
    connect_seconds: float = 5.0
    cleartext: bool = False
    """The password may be sent as it is, where the connection is encrypted or local."""
    sources: tuple[str, ...] = ()
    """The files and variables that the options came from."""
    peer: Peer | None = None
    """The server that must answer; None: the user has named an address alone."""

    def __repr__(self) -> str:
        """Without the password: this text can get into logs."""
        return f"Login({self})"

    def __str__(self) -> str:
        return f"{self.user!r} at {self.where}"

    @property
    def where(self) -> str:
        if self.socket is not None:
            return self.socket_shown or self.socket
        host = self.host or "localhost"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def default_user() -> str:
    """Return the clients' default user: that of the process."""
    if os.geteuid() == 0:
        return "root"
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return os.environ.get("USER") or os.environ.get("LOGNAME") or "UNKNOWN_MYSQL_USER"

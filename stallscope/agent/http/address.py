# SPDX-License-Identifier: Apache-2.0
"""Where the agent listens: ``127.0.0.1:9876``, ``[::1]:9876`` or ``unix:/run/stallscope/http``."""

from __future__ import annotations

import ipaddress
import os
import re

import msgspec

__all__ = ["Address", "parse"]

_MOST_PATH = 107
"""Bytes of sun_path, include/uapi/linux/un.h, without the zero at its end."""
_HOST_PORT = re.compile(r"(?:(?P<host>\[[^\[\]]+\]|[^\[\]:]+):)?(?P<port>[0-9]{1,5})", re.ASCII)
FORMS = "127.0.0.1:9876, [::1]:9876 or unix:/run/stallscope/http"


class Address(msgspec.Struct, frozen=True):
    """A TCP address, or the path of a unix socket."""

    host: str | None = None
    port: int = 0
    path: str | None = None

    @property
    def is_local(self) -> bool:
        """Return whether only processes of this host, or network namespace, can connect."""
        return self.host is None or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if self.host is None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(text: str) -> Address:
    """Parse ``HOST:PORT``, ``PORT`` (of 127.0.0.1) or ``unix:PATH``.

    A host is an IP address or ``localhost``: looking up a name could take long.

    Raises: ValueError that says what is wrong.
    """
    if text.startswith("unix:"):
        return _unix(text.removeprefix("unix:"))
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        raise ValueError(f"write {FORMS}")
    port = int(match["port"])
    if port > 65535:
        raise ValueError("a port is at most 65535")
    host = (match["host"] or "127.0.0.1").strip("[]")
    try:
        found = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ValueError("the host must be an IP address or localhost") from None
    if (":" in host) != (match["host"] or "").startswith("["):
        raise ValueError(f"write {FORMS}")
    return Address(str(found), port)


def _unix(path: str) -> Address:
    if not path.startswith("/") or "\0" in path:
        raise ValueError("unix: takes an absolute path")
    if len(os.fsencode(path)) > _MOST_PATH:
        raise ValueError(f"the path of a unix socket has at most {_MOST_PATH} bytes")
    return Address(path=path)

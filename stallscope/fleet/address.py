# SPDX-License-Identifier: Apache-2.0
"""Addresses of engines: ``clickhouse+https://user@host:8443/db``, ``file:///folder``."""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

import msgspec

from stallscope.base.errors import UsageError
from stallscope.base.text import one_line

__all__ = ["Address", "parse"]

_SCHEMES = {"clickhouse+http": "http", "clickhouse+https": "https"}
_PORTS = {"http": 8123, "https": 8443}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]")


class Address(msgspec.Struct, frozen=True):
    """Where an engine is. Of a folder ``path``, of ClickHouse the rest."""

    path: Path | None = None
    scheme: str = ""
    """``http`` or ``https``."""
    hosts: tuple[str, ...] = ()
    """``name:port`` each: nodes of one cluster, of which any can be asked."""
    database: str = ""
    user: str = ""
    password: str = ""

    @property
    def shown(self) -> str:
        """Return it for messages: without user and password."""
        if self.path is not None:
            return f"file://{self.path}"
        return f"clickhouse+{self.scheme}://{','.join(self.hosts)}/{self.database}"

    def __repr__(self) -> str:
        """Without the password: this text can get into logs."""
        return f"Address({self.shown})"


def parse(text: str) -> Address:
    """Return the address. Raises: UsageError, whose message has no user and no password."""
    scheme, separator, rest = text.partition("://")
    if not separator or not text.isprintable():
        raise _wrong("it is no address", text if "@" not in text else "")
    if scheme == "file":
        return _folder(rest)
    if scheme not in _SCHEMES:
        raise _wrong(f"{one_line(scheme, 40)}:// is not known", "")
    authority, _, database = rest.partition("/")
    account, _, hosts = authority.rpartition("@")
    user, _, password = account.partition(":")
    if _NAME.fullmatch(database or "stallscope") is None:
        raise _wrong("the database, after the host, has letters, digits and _", "")
    web = _SCHEMES[scheme]
    return Address(
        scheme=web,
        hosts=tuple(_host(host, _PORTS[web]) for host in hosts.split(",")),
        database=database or "stallscope",
        user=urllib.parse.unquote(user),
        password=urllib.parse.unquote(password),
    )


def _folder(rest: str) -> Address:
    path = urllib.parse.unquote(rest.removeprefix("localhost"))
    if not path.startswith("/"):
        raise _wrong("a folder is written with its whole path: file:///var/lib/fleet", "")
    return Address(path=Path(path))


def _host(text: str, default: int) -> str:
    name, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, port = text, str(default)
    if _HOST.fullmatch(name) is None:
        raise _wrong("the host is missing, or no name of one", "")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise _wrong("the port is no number from 1 to 65535", "")
    return f"{name}:{port}"


def _wrong(why: str, text: str) -> UsageError:
    shown = f": {one_line(text, 80)!r}" if text else ""
    return UsageError(
        f"{why}{shown}; write clickhouse+https://user@host:8443/db, clickhouse+http://… or"
        " file:///folder"
    )

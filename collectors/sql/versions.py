# SPDX-License-Identifier: Apache-2.0
"""Versions of servers, open-ended: from 5.5 to years as numbers and whatever comes then."""

from __future__ import annotations

import re

import msgspec

__all__ = ["ServerFacts", "ServerVersion", "parse"]

_REPLICATION_PREFIX = "5.5.5-"
"""MariaDB from 10.0 on puts it before its version in the greeting (sql_acl.cc): old replicas
refuse a master whose version begins with 1."""
_NUMBERS = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?(?:\.(\d{1,6}))?")
_TWO_NUMBERS = re.compile(r"\d{2,6}\.\d")
_PERCONA_BUILD = re.compile(r"\d{1,6}\.\d{1,6}\.\d{1,6}-(?:rel)?\d{1,3}(?:\.\d{1,3})?(?:-|$)")


class ServerVersion(msgspec.Struct, frozen=True):
    """The version of a server, and whose it is."""

    text: str
    """As the server says it."""
    family: str
    """``mysql``, ``mariadb`` or ``postgres``."""
    vendor: str
    """``mysql``, ``mariadb``, ``percona`` or ``postgres``."""
    numbers: tuple[int, int, int]
    """Zeros where the server says nothing: compare with ``>=``."""

    @property
    def mariadb(self) -> bool:
        return self.family == "mariadb"

    @property
    def has_kernel_mutex(self) -> bool:
        """Return whether one mutex guards all of InnoDB's transactions and row locks, so that each
        reader of them stops every statement: to MySQL 5.5, and where the version is unknown."""
        return self.numbers < (5, 6, 0)


class ServerFacts(msgspec.Struct, frozen=True):
    """The server at the other end."""

    version: ServerVersion
    connection: int
    """The id of our own connection."""
    socket: str | None = None
    port: int | None = None
    datadir: str | None = None
    listener_pid: int | None = None
    """The process that listens on our Unix socket, according to the kernel."""
    role: str | None = None
    """Whom the server takes us for, where it need not be the user of the login."""


def parse(text: str, comment: str = "") -> ServerVersion:
    """Parse ``VERSION()``; ``comment`` is ``@@version_comment``, which distinguishes Percona's from
    MySQL.

    What has no number is version 0.0.0 of MySQL: no feature is believed to be there.
    """
    text = text[:200]
    said = f"{text} {comment[:200]}".lower()
    rest = text
    mariadb = "mariadb" in said
    after = rest.removeprefix(_REPLICATION_PREFIX)
    if after != rest and _TWO_NUMBERS.match(after):
        rest, mariadb = after, True
    match = _NUMBERS.match(rest)
    groups = match.groups() if match is not None else (None, None, None)
    numbers = (int(groups[0] or 0), int(groups[1] or 0), int(groups[2] or 0))
    percona = "percona" in said or (not comment and bool(_PERCONA_BUILD.match(rest)))
    vendor = "mariadb" if mariadb else "percona" if percona else "mysql"
    return ServerVersion(
        text=text, family="mariadb" if mariadb else "mysql", vendor=vendor, numbers=numbers
    )

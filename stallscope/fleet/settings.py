# SPDX-License-Identifier: Apache-2.0
"""``[ship]`` of the configuration: docs/fleet.md."""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated

import msgspec

from stallscope.base import quantities, secretfiles
from stallscope.base.errors import UsageError
from stallscope.fleet.address import Address, parse

__all__ = ["PASSWORD", "ShipSettings", "addresses", "check", "has_password", "spool_bytes"]

PASSWORD = "STALLSCOPE_FLEET_PASSWORD"  # noqa: S105
"""The variable with the password of the user in an address of a command line."""

MAX_ADDRESSES = 10
LEAST_SPOOL = 1 << 20
MOST_SPOOL = 1 << 40
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,252})")


class ShipSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Where an agent ships its incidents; nowhere by default."""

    url: str | list[str] = ""
    """One address, or several: ``clickhouse+https://user@host:8443/db``, ``file:///folder``."""
    url_file: str = ""
    password: str = ""
    password_file: str = ""
    """Of the user in the address; a name without a slash is a credential of systemd."""
    ca_file: str = ""
    """Certificates to trust instead of the system's."""
    heartbeat: Annotated[float, msgspec.Meta(ge=5, le=3600)] = 60.0
    """Seconds from one sign of life to the next."""
    waits_every: Annotated[float, msgspec.Meta(ge=60, le=86400)] = 600.0
    """Seconds for which waits are gathered: one insertion has that many minutes of them."""
    spool_size: int | str = "64M"
    """Bytes that wait on disk for each address; then the oldest batches are dropped and counted."""
    redact: bool = False
    """Also replace names of users, schemas, tables and clients; literals never leave the host."""
    host: str = ""
    """The name of this host in the fleet, where its own must not leave it, or is not unique."""


def check(settings: ShipSettings) -> tuple[str, str] | None:
    """Return the first key that is wrong, and why; None: all are fine. Reads no file."""
    urls = _urls(settings)
    if urls and settings.url_file:
        return "url", "give either url or url-file, not both"
    if settings.password and settings.password_file:
        return "password", "give either password or password-file, not both"
    if len(urls) > MAX_ADDRESSES:
        return "url", f"more than {MAX_ADDRESSES} addresses"
    found: list[Address] = []
    for url in urls:
        try:
            found.append(parse(url))
        except UsageError as error:
            return "url", str(error)
    shown = [address.shown for address in found]
    if len(set(shown)) < len(shown):
        return "url", "an address is there twice"
    if settings.password or settings.password_file:
        if any(address.password for address in found):
            return "password", "an address of url has a password too: leave one of them out"
        if urls and not any(address.user for address in found):
            return "password", "no address of url has a user: write clickhouse+https://USER@HOST/DB"
    if settings.host and _HOST.fullmatch(settings.host) is None:
        return "host", "a name has letters, digits, ., - and _, at most 253"
    try:
        size = spool_bytes(settings)
    except ValueError:
        return "spool-size", f"{settings.spool_size!r} is not a size, write 64M"
    if not LEAST_SPOOL <= size <= MOST_SPOOL:
        return "spool-size", "it must be 1M to 1T"
    return None


def spool_bytes(settings: ShipSettings) -> int:
    """Return the bytes of a spool. Raises: ValueError."""
    size = settings.spool_size
    return quantities.size(size) if isinstance(size, str) else size


def addresses(settings: ShipSettings) -> list[Address]:
    """Return the addresses, with the secrets of the files that the settings name; none: nothing is
    shipped. Raises: UsageError, without a secret."""
    urls = _urls(settings)
    if settings.url_file:
        urls = secretfiles.line(settings.url_file, "ship: url-file").split()
    password = settings.password
    if settings.password_file:
        password = secretfiles.line(settings.password_file, "ship: password-file")
    wrong = check(msgspec.structs.replace(settings, url=urls, url_file=""))
    if wrong is not None:
        key = "url-file" if wrong[0] == "url" and settings.url_file else wrong[0]
        raise UsageError(f"ship: {key}: {wrong[1]}")
    found = map(parse, urls)
    return [
        msgspec.structs.replace(one, password=password) if password and one.user else one
        for one in found
    ]


def has_password(url: str) -> bool:
    """Return whether an address has a password in it, also one that cannot be parsed."""
    account, at, _ = url.partition("://")[2].rpartition("@")
    return bool(at) and ":" in urllib.parse.unquote(account)


def _urls(settings: ShipSettings) -> list[str]:
    found = settings.url
    return [one for one in ([found] if isinstance(found, str) else found) if one]

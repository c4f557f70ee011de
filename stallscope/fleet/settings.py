# SPDX-License-Identifier: Apache-2.0
"""``[ship]`` of the configuration: docs/fleet.md."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["ShipSettings"]


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
    spool_size: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 64 << 20
    """Bytes that wait on disk for each address; then the oldest batches are dropped and counted."""
    redact: bool = False
    """Also replace names of users, schemas, tables and clients; literals never leave the host."""
    host: str = ""
    """The name of this host in the fleet, where its own must not leave it, or is not unique."""

# SPDX-License-Identifier: Apache-2.0
"""The status numbers of a server at one moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["ABSENT", "Progress", "StatusSample"]

ABSENT = "not available on this server"
"""The text for a number that a server does not have."""


class Progress(msgspec.Struct, frozen=True):
    """One long statement whose progress the server reports."""

    connection: int
    stage: str
    percent: float | None
    query: str | None
    """Normalized."""


class StatusSample(msgspec.Struct, frozen=True):
    """The numbers of a server at one moment."""

    values: Mapping[str, float]
    """Numbers of SHOW GLOBAL STATUS; those of other sources have a dot in their names."""
    clock_s: float | None = None
    """Any steady clock; without one the server's own Uptime counts."""
    variables: Mapping[str, str] = {}
    version: str | None = None
    progress: tuple[Progress, ...] = ()
    missing: Mapping[str, str] = {}
    """Sources that could not be read, and why: ``innodb``, ``metrics``, ``progress``."""
    latest_deadlock: str | None = None
    """Time of the latest deadlock, in the server's format; None: none, or unknown."""
    session: int | None = None
    """The connection: a server that answers twice on the same one did not restart meanwhile."""

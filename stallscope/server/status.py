# SPDX-License-Identifier: Apache-2.0
"""The status numbers of a server at one moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["ABSENT", "Progress", "StatusSample"]

ABSENT = "not available on this server"
"""What is said of a number that a server does not have."""


class Progress(msgspec.Struct, frozen=True):
    """One long statement that the server says the progress of."""

    connection: int
    stage: str
    percent: float | None
    query: str | None
    """Normalized."""


class StatusSample(msgspec.Struct, frozen=True):
    """What a server said at one moment."""

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
    """When it was, in the server's own words; None: none, or unknown."""
    session: int | None = None
    """Which connection asked: a server that answers twice on one did not end meanwhile."""

# SPDX-License-Identifier: Apache-2.0
"""What a server itself counts of its commits, rows and writes, at one moment and between two."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["Commits", "StorageChanges", "StorageCounters"]


class StorageCounters(msgspec.Struct, frozen=True):
    """A server's counters at one moment, under the server's own names; those of PostgreSQL begin
    with their view: ``pg_stat_wal.wal_bytes``."""

    clock_s: float
    """CLOCK_MONOTONIC."""
    family: str
    """``mysql``, ``mariadb`` or ``postgres``."""
    version: str
    session: int
    """Our connection: a server that answers twice on the same one did not restart meanwhile."""
    values: Mapping[str, float] = {}
    settings: Mapping[str, str] = {}
    """Variables of the server that decide what is written and synced, as the server says them."""
    missing: Mapping[str, str] = {}
    """Sources that could not be read, and why."""


class Commits(msgspec.Struct, frozen=True):
    """Transactions that changed something and ended with a commit."""

    count: float
    source: str
    """The counters it is from, in words."""
    exact: bool
    """False: transactions that changed nothing may be among them, or others missing."""


class StorageChanges(msgspec.Struct, frozen=True):
    """What a server did between two samples. None is unknown, and never 0."""

    seconds: float
    family: str
    version: str
    commits: Commits | None = None
    rows: float | None = None
    """Rows inserted, updated and deleted."""
    rows_source: str | None = None
    row_bytes: float | None = None
    """Bytes of the rows themselves, where the server writes these somewhere once."""
    row_bytes_source: str | None = None
    log_bytes: float | None = None
    """Bytes of log records: how far the log sequence number moved."""
    counters: Mapping[str, float] = {}
    """How much each counter of the first sample grew."""
    settings: Mapping[str, str] = {}
    """Of the last sample."""
    restarted: bool = False
    """The server, or the connection, was another one: nothing is known of the time between."""
    notes: tuple[str, ...] = ()

# SPDX-License-Identifier: Apache-2.0
"""A server whose control group gives it a part of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cache import Unavailable
from tests.support.cgroups import cgroups_missing, limited
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.pool import client_pool

__all__ = ["cpu_quota", "wide_quota"]

PERIOD_US = 100_000
NARROW_US = 10_000
WIDE_US = 1_000_000
WORK = "SELECT BENCHMARK(5000, SHA2(RAND(), 256))"
"""A few milliseconds of a CPU: eight clients with pauses want more than the narrow quota, and less
than one CPU."""


@contextmanager
def _reads(server: SqlServer, quota_us: int, clients: int) -> Iterator[None]:
    """Let some clients calculate under a quota."""
    if reason := cgroups_missing():
        raise Unavailable(reason)
    with limited("cpu") as group:
        group.limit_cpu(quota_us, PERIOD_US)
        with client_pool(server, "mysql", [[WORK]] * clients):
            group.add(server.pid)
            try:
                if quota_us < PERIOD_US:
                    wait_until(lambda: group.throttled() > 5, "the quota is used up")
                yield
            finally:
                group.remove(server.pid)


@contextmanager
def cpu_quota(server: SqlServer, clients: int = 8) -> Iterator[None]:
    """Calculate, with a tenth of a CPU."""
    with _reads(server, NARROW_US, clients):
        yield


@contextmanager
def wide_quota(server: SqlServer, clients: int = 8) -> Iterator[None]:
    """The same with a quota of ten CPUs."""
    with _reads(server, WIDE_US, clients):
        yield

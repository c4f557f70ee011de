# SPDX-License-Identifier: Apache-2.0
"""A load at a fixed arrival rate, and the CPU time that a query takes server and client.

Requests are due at times that do not depend on the server (sysbench's ``--rate``), so a slower
server is not given less to do, and CPU time per query is comparable. Below saturation it does not
depend on what else uses the CPUs, as throughput does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.bench.stats import BenchError
from tests.support.bpf_objects import attached
from tests.support.servers import Child, SqlServer
from tests.support.servers.sql import Connection
from tests.support.stalls.load import sysbench_load
from tests.support.usage import process_cpu_ns

__all__ = ["RATES", "TESTS", "FixedRate", "PerQuery", "cpu_seconds", "fixed_rate"]

RATES = {"oltp_point_select": 3000, "oltp_write_only": 300}
"""Transactions a second: a tenth of what two slow CPUs can do."""
TESTS = tuple(RATES)
QUERIES = "Com_stmt_execute"
"""sysbench executes prepared statements; the agent does not, so that its own are left out."""
WARM_SECONDS = 2.0


@dataclass(frozen=True)
class PerQuery:
    """What one window has seen."""

    server_us: float
    client_us: float
    rate: float
    """Queries a second."""
    tools_percent: float
    """Of one CPU, that the variant's own processes used."""
    attached: bool = False
    """They had programs attached to the kernel at the end."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time so far of processes, one that has ended left out."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += process_cpu_ns(pid)
    return total / 1e9


@dataclass(frozen=True)
class FixedRate:
    """A server, and the sysbench that sends it queries."""

    server: SqlServer
    sysbench: Child
    connection: Connection[Any]
    """Of its own: other threads may use the server's."""

    def window(self, seconds: float, tools: Sequence[int] = ()) -> PerQuery:
        """Measure for a while; ``tools`` are the processes of the variant."""
        pids = (self.server.pid, self.sysbench.pid)
        begun, queries = time.monotonic(), self._queries()
        before, own = [process_cpu_ns(pid) for pid in pids], cpu_seconds(tools)
        time.sleep(seconds)
        after, own = [process_cpu_ns(pid) for pid in pids], cpu_seconds(tools) - own
        queries = self._queries() - queries
        lasted = time.monotonic() - begun
        if queries <= 0 or not self.sysbench.running():
            raise BenchError(f"{self.server.name} does nothing: {self.sysbench.tail()}")
        server_ns, client_ns = (b - a for a, b in zip(before, after, strict=True))
        return PerQuery(
            server_ns / queries / 1000,
            client_ns / queries / 1000,
            queries / lasted,
            100 * own / lasted,
            attached(tools) > 0,
        )

    def _queries(self) -> int:
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE %s", (QUERIES,))
            row = cursor.fetchone()
        assert row is not None
        return int(row[1])


@contextmanager
def fixed_rate(server: SqlServer, test: str, rate: int, threads: int) -> Iterator[FixedRate]:
    """Send a test's transactions at a rate, from when it is warm."""
    with (
        sysbench_load(server, threads, test, f"--rate={rate}") as child,
        closing(server.connect()) as connection,
    ):
        time.sleep(WARM_SECONDS)
        yield FixedRate(server, child, connection)

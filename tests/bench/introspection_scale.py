# SPDX-License-Identifier: Apache-2.0
"""Very many connections, half of which run a statement."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.bench import progress
from tests.bench.endurance_scale import limits_raised
from tests.bench.introspection_clients import SCHEMAS, USERS, Facts, Place
from tests.bench.introspection_mysql import MySQLDialect, options, prepare
from tests.bench.introspection_probe import sessions_probe
from tests.bench.introspection_times import calibrated
from tests.bench.stats import BenchError
from tests.support.servers import MEMORY, MySQL97
from tests.support.servers.ports import free_port

__all__ = ["read_many"]

SPARE_FILES = 2000
NOISE = 100
"""Threads of the server's own."""


def read_many(count: int, captures: int) -> tuple[str, list[float]]:
    """Return the server's name and version, and the milliseconds of each reading."""
    port = free_port()
    with (
        _files_raised(count),
        limits_raised(count),
        MySQL97(*options(port), parent=MEMORY) as server,
        ExitStack() as stack,
    ):
        prepare(server)
        _connect(MySQLDialect(server, port), count, stack)
        _, layout = calibrated(server.pid)
        reads = []
        with sessions_probe([server.pid], layout) as probe:
            for number in range(captures):
                progress(f"introspection: {count} connections, capture {number + 1}")
                moment = probe.begin()
                probe.finish()
                if not count <= len(moment.sessions) <= count + NOISE:
                    raise BenchError(f"{len(moment.sessions)} of {count} connections read")
                reads.append(moment.read_ns / 1e6)
        return f"{server.name} {server.version()}", reads


def _connect(dialect: MySQLDialect, count: int, stack: ExitStack) -> None:
    def know(facts: Facts) -> None:
        """Nothing is compared."""

    for number in range(count):
        if number % 100 == 0:
            progress(f"introspection: {number} of {count} connections")
        place = Place(USERS[number % len(USERS)], SCHEMAS[number % len(SCHEMAS)], quiet=True)
        connected = dialect.connect(place, know)
        stack.callback(connected.cut)
        if number % 2:
            connected.run(f"SELECT 'the last one of {number}'")
        else:
            connected.begin(f"SELECT SLEEP(100000), 'the one of {number}'")


@contextmanager
def _files_raised(count: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count + SPARE_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], most), max(before[1], most)))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

# SPDX-License-Identifier: Apache-2.0
"""Load that is no stall: sysbench's mix of short transactions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.child import Child, program
from tests.support.servers.clients import load_program
from tests.support.servers.postgres import Postgres
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import PATIENCE

__all__ = ["sysbench_load", "sysbench_load_postgres"]

TABLES = 4
ROWS = 10_000


def _sysbench(test: str, connection: tuple[str, ...], options: tuple[str, ...]) -> list[str]:
    """Return a command line of sysbench, without the command at its end."""
    sizes = (f"--tables={TABLES}", f"--table-size={ROWS}")
    return [str(program("sysbench")), test, *connection, *sizes, *options]


def sysbench(server: SqlServer, test: str, *options: str) -> list[str]:
    """Return its command line for MySQL and MariaDB."""
    connection = (
        "--db-driver=mysql",
        f"--mysql-socket={server.socket}",
        "--mysql-user=root",
        "--mysql-db=sbtest",
    )
    return _sysbench(test, connection, options)


def sysbench_postgres(server: Postgres, test: str, *options: str) -> list[str]:
    """Return its command line for PostgreSQL."""
    connection = (
        "--db-driver=pgsql",
        f"--pgsql-host={server.folder}",
        "--pgsql-user=postgres",
        "--pgsql-db=postgres",
    )
    return _sysbench(test, connection, options)


@contextmanager
def sysbench_load(
    server: SqlServer, threads: int, test: str = "oltp_read_write", *options: str
) -> Iterator[Child]:
    """Run a sysbench test with as many connections; yield its process.

    Its report goes to the child's ``log``, with ``--report-interval`` among ``options`` as it runs.
    """
    server.execute("CREATE DATABASE IF NOT EXISTS sbtest")
    if not server.query("SHOW TABLES FROM sbtest"):
        prepare = [*sysbench(server, test), "prepare"]
        subprocess.run(prepare, check=True, capture_output=True, timeout=PATIENCE)
    before = server.status("Questions")
    load = [*sysbench(server, test, f"--threads={threads}", "--time=0", *options), "run"]
    with load_program(
        server,
        load,
        "sysbench",
        lambda: (
            len(server.connection_ids()) >= threads
            and server.status("Questions") > before + 20 * threads
        ),
        f"{threads} sysbench threads run",
    ) as child:
        yield child


@contextmanager
def sysbench_load_postgres(
    server: Postgres, threads: int, test: str, *options: str
) -> Iterator[Child]:
    """Run a sysbench test on PostgreSQL, as ``sysbench_load`` does on the other servers."""
    if not server.number("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'sbtest%'"):
        prepare = [*sysbench_postgres(server, test), "prepare"]
        subprocess.run(prepare, check=True, capture_output=True, timeout=PATIENCE)
    before = _committed(server)
    load = [*sysbench_postgres(server, test, f"--threads={threads}", "--time=0", *options), "run"]
    child = Child(load, server.folder / "sysbench.log")
    try:
        child.wait_until(
            lambda: len(server.backends()) >= threads and _committed(server) > before + 2 * threads,
            f"{threads} sysbench threads run",
        )
        yield child
    finally:
        child.end()


def _committed(server: Postgres) -> int:
    return server.number("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")

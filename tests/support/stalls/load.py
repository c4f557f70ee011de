# SPDX-License-Identifier: Apache-2.0
"""Load that is no stall: sysbench's mix of short transactions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.child import Child, program
from tests.support.servers.clients import load_program
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import PATIENCE

__all__ = ["sysbench_load"]

TABLES = 4
ROWS = 10_000


def sysbench(server: SqlServer, test: str, *options: str) -> list[str]:
    """Return a command line of sysbench, without the command at its end."""
    return [
        str(program("sysbench")),
        test,
        "--db-driver=mysql",
        f"--mysql-socket={server.socket}",
        "--mysql-user=root",
        "--mysql-db=sbtest",
        f"--tables={TABLES}",
        f"--table-size={ROWS}",
        *options,
    ]


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

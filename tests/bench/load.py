# SPDX-License-Identifier: Apache-2.0
"""A live server with a heartbeat inside, and sysbench against it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.heartbeat import Heartbeat
from tests.bench.stats import BenchError
from tests.support.servers import MariaDB, MySQL97, SqlServer, cache_folder
from tests.support.stalls.load import sysbench
from tests.support.targets import target_path

__all__ = ["SERVERS", "TEST", "Latency", "run_sysbench", "server_with_heartbeat"]

SERVERS: dict[str, type[SqlServer]] = {"mariadb": MariaDB, "mysql97": MySQL97}
PROGRAMS = {"mariadb": "mariadbd", "mysql97": "mysqld"}
TEST = "oltp_read_write"


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables for the programs that are started inside of the block."""
    before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextmanager
def server_with_heartbeat(name: str) -> Iterator[tuple[SqlServer, Heartbeat]]:
    """Start a server that has a heartbeat thread of tests/targets/heartbeat_preload.c inside."""
    with ExitStack() as stack:
        # Under chroot the same path has to mean the same folder inside and, for us, outside.
        root = cache_folder() / "sid" if name == "mysql97" else Path("/")
        outside = Path(tempfile.mkdtemp(prefix="stallscope-beat-", dir=root / "tmp"))
        stack.callback(shutil.rmtree, outside, ignore_errors=True)
        if os.geteuid() == 0:
            shutil.chown(outside, "nobody", "nogroup")
        library = shutil.copy(target_path("heartbeat.so"), outside / "heartbeat.so")
        Path(library).chmod(0o755)
        inside = Path("/") / outside.relative_to(root)
        with environment(
            LD_PRELOAD=str(inside / "heartbeat.so"),
            STALL_HEARTBEAT=str(inside / "ticks"),
            STALL_HEARTBEAT_COMM=PROGRAMS[name],
        ):
            server = stack.enter_context(SERVERS[name]())
        yield server, Heartbeat(outside / "ticks")


@dataclass(frozen=True)
class Latency:
    """What sysbench reports of one run."""

    p99_ms: float
    max_ms: float
    transactions_per_s: float
    ignored_errors: int


def prepare(server: SqlServer) -> None:
    """Make sysbench's tables."""
    server.execute("CREATE DATABASE IF NOT EXISTS sbtest")
    subprocess.run(
        [*sysbench(server, TEST), "prepare"], check=True, capture_output=True, timeout=300
    )


def run_sysbench(server: SqlServer, threads: int, seconds: int, rate: int) -> Latency:
    """Run sysbench once. ``rate`` is transactions a second, arriving whether or not the server
    keeps up, so that a pause delays all that arrive during it; 0 is as fast as possible.
    """
    if not server.query("SHOW DATABASES LIKE 'sbtest'"):
        prepare(server)
    command = sysbench(
        server,
        TEST,
        f"--threads={threads}",
        f"--time={seconds}",
        "--percentile=99",
        f"--rate={rate}",
    )
    done = subprocess.run(
        [*command, "run"], capture_output=True, text=True, timeout=seconds + 120, check=False
    )
    if done.returncode != 0:
        raise BenchError(
            f"sysbench ended with {done.returncode}: {done.stdout[-300:]} {done.stderr[-300:]}"
        )
    return Latency(
        p99_ms=reported(r"99th percentile:\s+([\d.]+)", done.stdout),
        max_ms=reported(r"max:\s+([\d.]+)", done.stdout),
        transactions_per_s=reported(r"transactions:\s+\d+\s+\(([\d.]+) per sec", done.stdout),
        ignored_errors=int(reported(r"ignored errors:\s+(\d+)", done.stdout)),
    )


def reported(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    if match is None:
        raise BenchError(f"sysbench's report has no {pattern!r}")
    return float(match[1])

# SPDX-License-Identifier: Apache-2.0
"""What a snapshot and a new connection cost: PostgreSQL beside MySQL."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import (
    bar,
    better,
    counted,
    factor,
    rates,
    short,
    snapped,
)
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.support.servers import MariaDB, MySQL55, MySQL97, Postgres, Postgres17, SqlServer
from tests.support.servers.clients import idle_connections, load_program, slap
from tests.support.servers.pgclients import bench, sessions_in
from tests.support.stalls.load import sysbench, sysbench_postgres

__all__ = ["CONNECTIONS", "SNAPSHOTS"]

THREADS = 16
OTHERS = 400
TEN_READS = (
    "--point_selects=10", "--range_selects=off", "--tables=1", "--table-size=1000",
)  # fmt: skip
COMMITTED, REPEATABLE = "READ-COMMITTED", "REPEATABLE-READ"
TPS = re.compile(r"transactions: +\d+ +\(([\d.]+) per sec")
PGBENCH_TPS = re.compile(r"tps = ([\d.]+) \((?:without|including)")
SNAPSHOT_SERVERS: dict[str, Callable[[], Any]] = {
    "MySQL 5.5.9": MySQL55,
    "MySQL 9.7": MySQL97,
    "PostgreSQL 15": lambda: Postgres("max_connections=1000"),
    "PostgreSQL 17": lambda: Postgres17("max_connections=1000"),
}
OPEN = "BEGIN;\nSELECT txid_current();\n\\sleep 2000 s\n"


def _command(server: Any) -> list[str]:
    make = sysbench_postgres if isinstance(server, Postgres) else sysbench
    return [*make(server, "oltp_read_only", *TEN_READS)]


def _transactions(server: Any, sizes: Sizes) -> Figure:
    """Return transactions of ten reads a second, as sysbench reports them."""
    values = []
    for _ in range(1 if sizes.quick else sizes.windows):
        done = subprocess.run(
            [*_command(server), f"--threads={THREADS}", "--time=1", "run"],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        found = TPS.search(done.stdout)
        if found is None:
            raise BenchError("sysbench reports no transactions")
        values.append(float(found[1]))
    return figure(values, "TPS")


def _isolate(server: Any, level: str) -> None:
    """Set the isolation level of connections that come."""
    if isinstance(server, Postgres):
        text = level.replace("-", " ").lower()
        server.execute(f"ALTER DATABASE postgres SET default_transaction_isolation = '{text}'")
        return
    name = "tx_isolation" if isinstance(server, MySQL55) else "transaction_isolation"
    server.execute(f"SET GLOBAL {name} = '{level}'")


@contextmanager
def _others(server: Any, count: int) -> Iterator[None]:
    """Hold transactions open that have changed something, or at least have a number."""
    if not count:
        yield
        return
    if isinstance(server, Postgres):
        idle = "state = 'idle in transaction'"
        there = lambda: sessions_in(server, idle) == count  # noqa: E731
        with bench(server, OPEN, count, there, f"{count} transactions are open"):
            yield
        return
    server.execute(
        "CREATE TABLE IF NOT EXISTS sbtest.held (id INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB"
    )
    with idle_connections(server, count) as connections:
        for connection in connections:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO sbtest.held VALUES ()")
        yield


def measure_snapshots(sizes: Sizes) -> Found:
    found: dict[tuple[str, int, str], Figure] = {}
    verdicts: list[Verdict] = []
    names = list(SNAPSHOT_SERVERS) if not sizes.quick else ["PostgreSQL 15"]
    counts = (0, sizes.of(OTHERS, 20))
    for name in names:
        with SNAPSHOT_SERVERS[name]() as server:
            if not isinstance(server, Postgres):
                server.execute("CREATE DATABASE sbtest")
            subprocess.run(
                [*_command(server), "prepare"], check=True, capture_output=True, timeout=120
            )
            for count in counts:
                with _others(server, count):
                    for level in (COMMITTED, REPEATABLE):
                        progress(f"snapshots: {name}, {count} others, {level}")
                        _isolate(server, level)
                        found[name, count, level] = _transactions(server, sizes)
                    if count and name in (names[0], names[-1]):
                        verdicts.append(_during(server, sizes, name))
    return _snapshots(names, counts, found, verdicts)


def _during(server: Any, sizes: Sizes, name: str) -> Verdict:
    """Return what is said while the load runs."""
    _isolate(server, COMMITTED)
    load = subprocess.Popen(
        [*_command(server), f"--threads={THREADS}", "--time=60", "run"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        said = snapped(server.pid, sizes)
        return Verdict(f"{said.command} of {name}", said.says)
    finally:
        load.kill()
        load.wait()


def _snapshots(
    names: list[str],
    counts: tuple[int, int],
    found: dict[tuple[str, int, str], Figure],
    verdicts: Sequence[Verdict],
) -> Found:
    gains = {
        (name, count): factor(
            found[name, count, REPEATABLE].median, found[name, count, COMMITTED].median
        )
        for name in names
        for count in counts
    }
    most = counts[-1]

    def text(name: str) -> str:
        return f"{(gains[name, most] - 1) * 100:+.0f} % in {name}"

    of_postgres = [gains[name, most] for name in names if name.startswith("PostgreSQL")]
    any_gain = max(gains[name, most] for name in names)
    return Found(
        ours=", ".join(text(name) for name in names) + f", beside {most} open transactions",
        after="the gain of REPEATABLE READ is the fix: one snapshot for a transaction's ten reads",
        shows="yes" if min(of_postgres) >= 1.5 else "partly" if any_gain >= 1.3 else "no",
        verdicts=tuple(verdicts),
        tables=(
            Section(
                "snapshots",
                f"Transactions of ten point reads a second, {THREADS} threads",
                tuple(
                    Row(
                        f"{name}, {count} other open transactions",
                        {
                            "READ COMMITTED": found[name, count, COMMITTED],
                            "REPEATABLE READ": found[name, count, REPEATABLE],
                            "gain": f"{(gains[name, count] - 1) * 100:+.0f} %",
                        },
                    )
                    for name in names
                    for count in counts
                ),
            ),
        ),
        drawings=(
            Drawing(
                "snapshots",
                "; ".join(text(name) for name in names),
                bars=Bars(
                    f"Ten point reads in a transaction, beside {most} open ones",
                    "transactions/s",
                    [
                        Group(
                            name,
                            [
                                bar("a snapshot a statement", found[name, most, COMMITTED]),
                                bar("a snapshot a transaction", found[name, most, REPEATABLE]),
                            ],
                        )
                        for name in names
                    ],
                ),
            ),
        ),
        why="Not in PostgreSQL any more: until 13, each snapshot walked the list of all backends,"
        " under a lock that all CPUs wanted. Since 14, it reads a dense array of transaction"
        " numbers, and is used again while no transaction has ended; and two CPUs hardly queue for"
        " a lock. MySQL 5.5 copies the numbers of all open transactions for each snapshot, under"
        " `kernel_mutex`: what the seed saw in PostgreSQL is there beside 400 of them.",
    )


SNAPSHOTS = Experiment(
    "snapshots",
    "What a snapshot costs",
    Case("MySQL +10 %, PostgreSQL +50 to 130 %", "Mituzas 2010, random poking"),
    "sysbench's transactions of ten point reads, with a snapshot for each statement (READ"
    " COMMITTED) and for each transaction (REPEATABLE READ), alone and beside 400 open"
    " transactions. The gain is what the other nine snapshots cost.",
    "REPEATABLE READ where a transaction has many reads; a pool instead of many connections",
    measure_snapshots,
    ("mysql55", "mysql97", "postgres", "postgres17"),
)

CLIENTS = 8
MYSQL: dict[str, Callable[[], SqlServer]] = {
    "MySQL 5.5.9": MySQL55,
    "MariaDB 10.11": MariaDB,
    "MySQL 9.7": MySQL97,
    "MySQL 9.7, TLS": MySQL97,
}
POSTGRES: dict[str, Callable[[], Postgres]] = {
    "PostgreSQL 15": Postgres,
    "PostgreSQL 17": Postgres17,
}


def _mysql_connections(server: SqlServer, tls: bool, sizes: Sizes) -> tuple[Figure, Figure]:
    """Return connections a second, a query each, and queries a second of connections that stay."""
    server.execute("SET GLOBAL thread_cache_size = 64")
    found = []
    for options, counter in ((("--detach=1",), "Connections"), ((), "Questions")):
        load = [*slap(server, "mysql", "SELECT 1", concurrency=CLIENTS, queries=100_000_000)]
        load += options
        if tls:
            load.append("--ssl")
        with load_program(server, load, "connect", lambda: True, "clients"):
            found.append(
                rates(lambda name=counter: counted(server, name)[name], sizes, "/s")  # type: ignore[misc]
            )
    return found[0], found[1]


def _postgres_connections(server: Postgres, sizes: Sizes) -> tuple[Figure, Figure]:
    found = []
    script = server.folder / "one.sql"
    script.write_text("SELECT 1;\n")
    for options in (("--connect",), ()):
        values = []
        for _ in range(1 if sizes.quick else sizes.windows):
            done = subprocess.run(
                [
                    str(server.program("pgbench")), "--no-vacuum", "-h", str(server.folder), "-U",
                    "postgres", f"--client={CLIENTS}", f"--file={script}",
                    f"--time={max(1, round(sizes.seconds))}", *options, "postgres",
                ],
                capture_output=True, text=True, check=True, timeout=120,
            )  # fmt: skip
            tps = PGBENCH_TPS.search(done.stdout)
            if tps is None:
                raise BenchError("pgbench reports no tps")
            values.append(float(tps[1]))
        found.append(figure(values, "/s"))
    return found[0], found[1]


def measure_connections(sizes: Sizes) -> Found:
    found: dict[str, tuple[Figure, Figure]] = {}
    verdict: Verdict | None = None
    for name, make in MYSQL.items():
        if sizes.quick and found:
            break
        with make() as server:
            progress(f"connections: {name}")
            found[name] = _mysql_connections(server, name.endswith("TLS"), sizes)
    for name, started in POSTGRES.items():
        with started() as postgres:
            progress(f"connections: {name}")
            found[name] = _postgres_connections(postgres, sizes)
            if verdict is None:
                verdict = _while_connecting(postgres, sizes)
        if sizes.quick:
            break
    assert verdict is not None
    threads = max(found[name][0].median for name in MYSQL if name in found)
    processes = max(found[name][0].median for name in POSTGRES if name in found)
    kept = max(found[name][1].median for name in POSTGRES if name in found)
    old = found["MySQL 5.5.9"][0].median
    times = factor(threads, processes)
    return Found(
        ours=f"{short(old)}/s (5.5.9) against {short(processes)}/s (PostgreSQL)",
        after=f"{short(kept)} queries/s of PostgreSQL where connections stay"
        f" ({better(kept, processes)})",
        shows="yes" if times >= 6 else "partly" if times >= 2 else "no",
        verdicts=(verdict,),
        tables=(
            Section(
                "connections",
                f"{CLIENTS} clients: a connection for each query, and connections that stay",
                tuple(
                    Row(name, {"new connections": new, "queries on old ones": old_ones})
                    for name, (new, old_ones) in found.items()
                ),
            ),
        ),
        drawings=(
            Drawing(
                "connections",
                f"{short(threads)} connections a second with threads, {short(processes)} with"
                " processes",
                bars=Bars(
                    f"New connections a second, {CLIENTS} clients",
                    "connections/s",
                    [
                        Group(name, [bar("with a query each", new)])
                        for name, (new, _) in found.items()
                    ],
                ),
            ),
        ),
        why="Clients and server share two CPUs, and the clients of both sides are different"
        " programs (mariadb-slap, pgbench). A thread of MySQL is taken from its cache; PostgreSQL"
        " forks a process, which reads its catalogs. What clients of 9.7 do if nobody says"
        " otherwise, a TLS handshake for each connection, costs more than either.",
    )


def _while_connecting(server: Postgres, sizes: Sizes) -> Verdict:
    """Return what is said while clients connect."""
    with bench(
        server, "SELECT 1;\n", CLIENTS, lambda: bool(server.backends()), "clients", "--connect"
    ):
        return snapped(server.pid, sizes)


CONNECTIONS = Experiment(
    "connections",
    "Connections a second",
    Case("15,000/s (MySQL) against 1,500/s (PostgreSQL)", "Mituzas 2010, random poking"),
    "8 clients connect, run `SELECT 1` and disconnect, as fast as they can.",
    "connections that stay: a pool (pgbouncer)",
    measure_connections,
    ("mysql55", "mariadb", "mysql97", "postgres", "postgres17"),
)

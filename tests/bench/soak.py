# SPDX-License-Identifier: Apache-2.0
"""Servers with the in-process library inside, for a long time, under all that is hard on it.

Connections and with them threads come and go, sysbench restarts every few seconds, stalls are
made in between, somebody reads the ring and switches it. Whatever goes wrong is counted.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pymysql

from stallscope.collectors import probe
from stallscope.collectors import rings as find_rings
from stallscope.model import capturefile
from tests.bench.stats import BenchError, Row, Section
from tests.support.servers import Late, MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.servers.clients import idle_connections
from tests.support.servers.inside import agent_inside, one_ring
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    REDO_SYNC_OPTIONS,
    TABLE_STORM_OPTIONS,
    Device,
    deadlock_check_storm,
    file_extend,
    global_read_lock,
    index_lock,
    loop_device,
    metadata_lock_pileup,
    redo_sync,
    row_lock_convoy,
    table_open_storm,
    template_of_tables,
)
from tests.support.stalls.load import sysbench

__all__ = ["soak_section"]

KEPT = 20
"""Connections that stay."""
COMERS = 4
"""Clients that connect, do little, and go."""
PAUSE = 0.02
"""Seconds between two connections of one of them."""
HUNG_SECONDS = 60
STALL_SECONDS = 3
ROUND_SECONDS = 15
RATE = 150
"""Transactions a second, of each server: three of them share the machine."""
SYSBENCH_THREADS = 8
TESTS = ("oltp_read_write", "oltp_write_only", "oltp_point_select")
THRESHOLDS_NS = (1_000_000, 100_000_000)
"""In turns: at the first one much is recorded."""
MOST_ERRORS = 5
"""The most errors of each server that are printed in full."""
# Every thread ends with its connection.
NO_THREAD_CACHE = "--thread-cache-size=0"
CRASHED = re.compile(r"got signal|Assertion failure|stack smashing|Segmentation fault", re.I)
COMPLAINT = re.compile(r"^stallscope: |libstallscope")

CRASH, HUNG, LOST, CLIENT = "crashes", "hung", "connections lost", "client errors"
GOALS = (CRASH, HUNG, LOST, CLIENT)
DONE = ("transactions", "connections", "captures")

Stall = Callable[[SqlServer], AbstractContextManager[object]]


@dataclass
class Soak:
    """A server, what it goes through, and what was seen."""

    server: SqlServer
    stalls: dict[str, Stall]
    stop: threading.Event
    counts: Counter[str] = field(default_factory=Counter)
    gone_through: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    slowest: float = 0.0
    waits: int = 0
    records: int = 0

    def failed(self, what: str, error: object) -> None:
        """Count a failure, and keep what it said."""
        self.counts[what] += 1
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(f"{what}: {error}")
        say(f"{self.server.name}: {what}: {error}")

    def answered(self, started: float) -> None:
        """Note how long an answer took."""
        seconds = time.monotonic() - started
        self.slowest = max(self.slowest, seconds)
        if seconds > HUNG_SECONDS:
            self.failed(HUNG, f"an answer took {seconds:.0f} s")


def say(text: str) -> None:
    """Print how it goes: nobody watches a soak, and its log is read later."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def soak_section(minutes: float) -> Section:
    """Let all three servers live with the library for a while."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # in order, with its table
    with loop_device() as device55, loop_device() as device10:
        soaks = [
            Soak(mysql55(device55), stalls_of_55(device55), stop),
            Soak(mariadb(device10), {**STALLS, **disk_stalls(device10)}, stop),
            Soak(MySQL97(NO_THREAD_CACHE), dict(STALLS), stop),
        ]
        running = [threading.Thread(target=live, args=(soak,)) for soak in soaks]
        for thread in running:
            thread.start()
        try:
            stop.wait(minutes * 60)
        finally:
            stop.set()
            for thread in running:
                thread.join()
    goals = [goal(soak) for soak in soaks]
    return Section(
        "soak",
        f"{minutes:g} minutes with the library inside, all three servers at once",
        tuple(row(soak) for soak in soaks),
        goals=tuple(goals),
        notes=tuple(f"{soak.server.name}: {error}" for soak in soaks for error in soak.errors),
    )


def mysql55(device: Device) -> SqlServer:
    options = (*FILE_EXTEND_OPTIONS, *REDO_SYNC_OPTIONS, *TABLE_STORM_OPTIONS, NO_THREAD_CACHE)
    return MySQL55(*options, parent=device.folder, template=template_of_tables())


def mariadb(device: Device) -> SqlServer:
    return MariaDB(*REDO_SYNC_OPTIONS, NO_THREAD_CACHE, parent=device.folder)


@contextmanager
def emptied(
    server: SqlServer, database: str, stall: AbstractContextManager[object]
) -> Iterator[None]:
    """Drop what a stall has made, for the next one and for room on its device."""
    try:
        with stall:
            yield
    finally:
        server.execute(f"DROP DATABASE IF EXISTS {database}")


STALLS: dict[str, Stall] = {
    # Its ALTER TABLE may get through at the end.
    "metadata-lock": lambda server: emptied(server, "shop", metadata_lock_pileup(server)),
    "global-read-lock": lambda server: emptied(server, "shop", global_read_lock(server)),
    "row-lock": row_lock_convoy,
}


def disk_stalls(device: Device) -> dict[str, Stall]:
    return {"redo-sync": lambda server: emptied(server, "diary", redo_sync(server, device))}


def stalls_of_55(device: Device) -> dict[str, Stall]:
    return {
        **STALLS,
        **disk_stalls(device),
        "file-extend": lambda server: emptied(server, "yard", file_extend(server, device)),
        "deadlock-check": deadlock_check_storm,
        "table-open-lock": table_open_storm,
        "index-lock": index_lock,
    }


def live(soak: Soak) -> None:
    """Run a server until it is asked to stop, or has failed."""
    server = soak.server
    try:
        with agent_inside(server) as rings, server:
            pid = server.pid
            say(f"{server.name} {server.version()}: pid {pid}, ring in {rings}")
            prepare(server)
            with ExitStack() as stack:
                for client in (keep, *[come_and_go] * COMERS):
                    stack.enter_context(in_thread(client, soak))
                while not soak.stop.is_set():
                    go_round(soak, one_ring(rings))
            seen = find_rings.read(one_ring(rings))
            soak.waits, soak.records = seen.waits, seen.records
            end_of_life(soak)
    except Exception as error:  # whatever it is, it is printed, and the other servers go on
        soak.failed(CRASH, repr(error))


def end_of_life(soak: Soak) -> None:
    """Shut the server down cleanly, and read its log."""
    server = soak.server
    if not server.child.running():
        raise BenchError(f"{server.name} has ended: {server.child.tail()}")
    child = server.child
    server.shut_down()
    if code := child.wait(0):
        soak.failed(CRASH, f"exit code {code}")
    for line in server.log.read_text(errors="replace").splitlines():
        if CRASHED.search(line):
            soak.failed(CRASH, line)
        elif COMPLAINT.search(line):
            soak.failed("complaints", line)


@contextmanager
def in_thread(work: Callable[[Soak, threading.Event], None], soak: Soak) -> Iterator[None]:
    """Run a client during the block."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(soak, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def prepare(server: SqlServer) -> None:
    server.execute(
        "CREATE DATABASE sbtest",
        "CREATE TABLE sbtest.comers (id INT PRIMARY KEY, n INT) ENGINE=InnoDB",
    )
    command = [*sysbench(server, TESTS[0]), "prepare"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)


def go_round(soak: Soak, ring: Path) -> None:
    """Take a server through each stall, with sysbench before it, and the ring set otherwise."""
    for number, (name, stall) in enumerate(soak.stalls.items()):
        if soak.stop.is_set():
            return
        threshold = THRESHOLDS_NS[number % len(THRESHOLDS_NS)]
        find_rings.set_thresholds(ring, [f"{threshold / 1e6:f}"])
        find_rings.switch(ring, on=number % 5 != 4)
        load(soak, TESTS[number % len(TESTS)])
        find_rings.switch(ring, on=True)
        try:
            with stall(soak.server):
                capture(soak, ring)
                soak.stop.wait(STALL_SECONDS)
        except (Late, pymysql.err.Error) as error:
            if not soak.server.child.running():
                raise BenchError(f"ended in {name}: {soak.server.child.tail()}") from error
            soak.failed(f"stall {name}", error)
            continue
        soak.gone_through[name] += 1
        seen = find_rings.read(ring)
        say(
            f"{soak.server.name}: {name}, {soak.counts['connections']} came and went,"
            f" {soak.counts['transactions']} transactions, {seen.waits} waits,"
            f" {seen.records} records, slowest answer {soak.slowest:.1f} s"
        )


def capture(soak: Soak, ring: Path) -> None:
    """Take a capture from the ring while the server writes it."""
    argv = [str(probe.find()), "snap", "--backend", "inproc", "--ring", str(ring)]
    done = subprocess.run(
        [*argv, "--pid", str(soak.server.pid)],
        capture_output=True,
        check=False,
        timeout=HUNG_SECONDS,
    )
    if done.returncode not in (0, 3):
        soak.failed("captures that failed", done.stderr.decode(errors="replace").strip())
        return
    read = capturefile.loads(done.stdout, "stallscope-probe snap")
    soak.counts["captures"] += any(thread.frames for thread in read.threads)


def load(soak: Soak, test: str) -> None:
    """Run sysbench once."""
    options = (f"--threads={SYSBENCH_THREADS}", f"--time={ROUND_SECONDS}", f"--rate={RATE}")
    command = [*sysbench(soak.server, test, *options), "run"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=ROUND_SECONDS + HUNG_SECONDS,
        )
    except subprocess.TimeoutExpired:
        soak.failed(HUNG, f"sysbench {test} did not end")
        return
    if done.returncode != 0:
        fatal = [line for line in done.stdout.splitlines() if "FATAL" in line]
        soak.failed(CLIENT, f"sysbench {test}: {(fatal or [done.stderr[-200:]])[0]}")
    if found := re.search(r"transactions:\s+(\d+)", done.stdout):
        soak.counts["transactions"] += int(found[1])


def keep(soak: Soak, over: threading.Event) -> None:
    """Hold connections, and ask each of them once a second."""
    with idle_connections(soak.server, KEPT) as connections:
        while not over.wait(1):
            for number, connection in enumerate(connections):
                started = time.monotonic()
                try:
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT 1")
                    soak.answered(started)
                except pymysql.err.Error as error:
                    soak.failed(LOST, error)
                    with suppress(pymysql.err.Error):
                        connections[number] = soak.server.connect()


def come_and_go(soak: Soak, over: threading.Event) -> None:
    """Connect, write a row and read it, and go, again and again."""
    key = threading.get_ident() % 1_000_000
    while not over.wait(PAUSE):
        started = time.monotonic()
        try:
            with (
                closing(soak.server.connect("sbtest")) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("REPLACE INTO comers VALUES (%s, 1)", (key,))
                cursor.execute("SELECT n FROM comers WHERE id = %s", (key,))
            soak.counts["connections"] += 1
            soak.answered(started)
        except pymysql.err.Error as error:
            soak.failed(CLIENT, error)


def row(soak: Soak) -> Row:
    stalls = ", ".join(f"{name} {count}" for name, count in sorted(soak.gone_through.items()))
    failed = {key: count for key, count in soak.counts.items() if key not in DONE}
    return Row(
        soak.server.name,
        {
            "transactions": str(soak.counts["transactions"]),
            "connections that came and went": str(soak.counts["connections"]),
            "stalls": stalls or "-",
            "captures with stacks": str(soak.counts["captures"]),
            "waits": str(soak.waits),
            "records": str(soak.records),
            "slowest answer": f"{soak.slowest:.1f} s",
            **{name: str(soak.counts[name]) for name in GOALS},
            "other": ", ".join(f"{k} {n}" for k, n in failed.items() if k not in GOALS) or "-",
        },
    )


def goal(soak: Soak) -> tuple[str, bool]:
    text = ", ".join(f"{soak.counts[name]} {name}" for name in GOALS)
    seen = soak.waits > 0 and soak.counts["transactions"] > 0
    return (f"{soak.server.name}: {text}", seen and not any(soak.counts[n] for n in GOALS))

# SPDX-License-Identifier: Apache-2.0
"""Read-ahead that nobody needs, switched off in the live server."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pymysql

from tests.bench import progress
from tests.bench.experiments.measures import asked, counted, factor, short, snapped
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.linechart import Band, Chart, Line
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.support.servers import MySQL55, Unavailable
from tests.support.servers.clients import idle_connections
from tests.support.servers.sql import Connection
from tests.support.stalls import device_missing, loop_device
from tests.support.stalls.disk_load import ROWS, fill_pages
from tests.support.stalls.page_io import SMALL_POOL
from tests.support.stalls.slow_device import slow_device

__all__ = ["READ_AHEAD"]

CLIENTS = 120
THINK = 4.0
"""Seconds between two queries of a client: they come whether or not the disk keeps up."""
EXTENT = 64
"""Pages that a query reads one after the other: those of one extent, and no more: the next one is
read ahead, and nobody needs it."""
FRAGMENTS = 32
"""Pages of an index that come before its extents."""
READ = 33 << 20
"""Bytes that the disk gives in a second: enough for the queries, too little with what nobody
needs."""
PHASES = (("read-ahead on", 20.0), ("poked: off", 20.0), ("on again", 15.0))
STEP = 0.5
POKE = "linear-read-ahead"


class Moment(NamedTuple):
    """What a look at the server found."""

    at: float
    running: int
    queries: int
    ahead: int
    """Pages read ahead so far."""


class _Client(threading.Thread):
    """One that queries at intervals."""

    def __init__(self, number: int, connection: Connection[Any], ended: threading.Event) -> None:
        super().__init__()
        self._random = random.Random(number)
        self._connection, self._ended = connection, ended

    def run(self) -> None:
        self._ended.wait(self._random.uniform(0, THINK))
        with suppress(pymysql.err.Error, OSError), self._connection.cursor() as cursor:
            while not self._ended.is_set():
                page = FRAGMENTS + EXTENT * self._random.randrange(ROWS // 2 // EXTENT - 2)
                cursor.execute(
                    "SELECT SUM(LENGTH(v)) FROM pages WHERE id BETWEEN %s AND %s",
                    (2 * page + 1, 2 * (page + EXTENT)),
                )
                self._ended.wait(self._random.uniform(0, 2 * THINK))


@contextmanager
def _clients(server: MySQL55, count: int) -> Iterator[None]:
    ended = threading.Event()
    with idle_connections(server, count) as connections:
        clients = []
        for number, connection in enumerate(connections):
            connection.select_db("disk")
            clients.append(_Client(number, connection, ended))
        for client in clients:
            client.start()
        try:
            yield
        finally:
            ended.set()
            for client in clients:
                client.join()


def _look(server: MySQL55, start: float) -> Moment:
    names = ("Threads_running", "Com_select", "Innodb_buffer_pool_read_ahead")
    found = counted(server, *names)
    return Moment(time.monotonic() - start, *(found[name] for name in names))


def _course(server: MySQL55, start: float, seconds: float) -> list[Moment]:
    """Look at the server for a while."""
    end = time.monotonic() + seconds
    seen = []
    while time.monotonic() < end:
        seen.append(_look(server, start))
        time.sleep(STEP)
    return seen


def measure(sizes: Sizes) -> Found:
    if reason := device_missing():
        raise Unavailable(reason)
    phases = [(name, 1.0 if sizes.quick else seconds) for name, seconds in PHASES]
    courses: list[list[Moment]] = []
    with loop_device() as device, MySQL55(*SMALL_POOL, parent=device.folder) as server:
        fill_pages(server)
        with (
            slow_device(server, device, read_bytes=READ),
            _clients(server, sizes.of(CLIENTS, 4)),
        ):
            time.sleep(0 if sizes.quick else 3 * THINK)
            start = time.monotonic()
            courses.append(_course(server, start, phases[0][1]))
            verdict = snapped(server.pid, sizes._replace(quick=True))
            progress("read-ahead: poked")
            seconds = phases[1][1]
            records = ("--records", str(device.folder / "pokes"))
            poked = asked(
                ["poke", POKE, "-p", str(server.pid), "--for", f"{seconds:g}", "--yes", *records],
                lambda line: bool(line.strip()),
                f"stallscope poke {POKE} -p PID --for {seconds:g} --yes",
            )
            if poked.missing:
                raise BenchError(f"{poked.command}: {poked.missing}")
            courses.append(_course(server, start, seconds))
            # Its supervisor undoes it meanwhile.
            courses.append(_course(server, start, phases[2][1]))
    return _found([name for name, _ in phases], courses, (verdict, poked))


def _settled(course: Sequence[Moment]) -> Sequence[Moment]:
    """Leave out what a change takes until it is seen in the queue."""
    return course[len(course) // 2 :]


def _running(course: Sequence[Moment]) -> Figure:
    return figure([moment.running for moment in _settled(course)], "running")


def _rate(course: Sequence[Moment], name: str) -> float:
    first, last = _settled(course)[0], _settled(course)[-1]
    grown = int(getattr(last, name)) - int(getattr(first, name))
    return grown / max(last.at - first.at, STEP)


def _found(
    names: Sequence[str], courses: Sequence[Sequence[Moment]], said: tuple[Verdict, ...]
) -> Found:
    before, off, again = (_running(course) for course in courses)
    # A queue takes its time to grow: both times with read-ahead count.
    on = statistics.median((*before.values, *again.values))
    times = factor(on, max(off.median, 1))
    points: list[tuple[float, float | None]] = []
    for course in courses:
        points += [(moment.at, float(moment.running)) for moment in course]
        # Between two courses nobody looked.
        points.append((course[-1].at, None))
    band = Band("poked: no read-ahead", courses[1][0].at, courses[1][-1].at)
    return Found(
        ours=f"{short(on)} → {short(off.median)} running threads;"
        f" {_rate(courses[0], 'queries'):.1f} → {_rate(courses[1], 'queries'):.1f} queries/s",
        after=f"{short(before.median)} running before, {short(off.median)} while poked,"
        f" {short(again.median)} after it was undone",
        shows="yes" if times >= 3 else "partly" if times >= 1.3 else "no",
        verdicts=said,
        tables=(
            Section(
                "read-ahead",
                f"{CLIENTS} clients that think for {THINK:g} s between ranges of {EXTENT} pages,"
                f" a disk that gives {READ >> 20} MB/s, MySQL 5.5.9",
                tuple(
                    Row(
                        name,
                        {
                            "Threads_running": _running(course),
                            "queries/s": f"{_rate(course, 'queries'):.1f}",
                            "pages read ahead/s": f"{_rate(course, 'ahead'):.0f}",
                        },
                    )
                    for name, course in zip(names, courses, strict=True)
                ),
                notes=("the second half of each time, when the queue has changed",),
            ),
        ),
        drawings=(
            Drawing(
                "read-ahead",
                f"{short(on)} threads run, {short(off.median)} while read-ahead is off",
                lines=Chart(
                    "Running threads while a variable is poked into the live server",
                    "seconds",
                    "Threads_running",
                    [Line("MySQL 5.5.9", points)],
                    [band],
                ),
            ),
        ),
        why="The seed had 2,000 threads in line for real disks; here 120 clients share a limit of a"
        " control group.",
    )


READ_AHEAD = Experiment(
    "read-ahead",
    "A poke stops read-ahead",
    Case("2,000 → 10 running threads", "Mituzas 2010, read-ahead"),
    "Clients read ranges of one extent (64 pages), and the server reads the next extent ahead,"
    " which nobody needs, from a disk that has no room for that. `stallscope poke` sets"
    " `srv_startup_is_before_trx_rollback_phase`, which linear read-ahead asks, and undoes it.",
    "`stallscope poke` for the night; then a larger `innodb_read_ahead_threshold`",
    measure,
    ("mysql55", "freeze"),
)

# SPDX-License-Identifier: Apache-2.0
"""What a cluster needs as a fleet grows: hosts ship by the clock, as many as there are."""

from __future__ import annotations

import heapq
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from stallscope.base.sending import SendError
from stallscope.fleet.batch import Batch
from stallscope.fleet.destination import Destination
from tests.bench import progress
from tests.bench.fleet_options import Options
from tests.bench.fleet_places import ClusterPlace
from tests.bench.fleet_sizing import a_day, in_bytes
from tests.bench.stats import BenchError, Row, Section, number
from tests.support.fleet.simulated import WAIT_KINDS, Fleet, Host

__all__ = ["Grown", "grown", "growth_section", "sends"]

AN_HOUR = 3600.0
INCIDENTS_AN_HOUR = 14
BEAT_S = 60.0
WAITS_S = 600.0
CLIENTS = 64
"""Connections at a time; an agent opens one for each send, and closes it after a while."""
WARM_S = 2.0
LATE_S = 5.0


class Grown(NamedTuple):
    """A fleet of one size. CPU is of all servers, in cores; times in seconds."""

    hosts: int
    inserts_s: float
    rows_s: float
    cpu: float
    zookeeper_cpu: float
    parts: int
    memory: int
    median_s: float
    p99_s: float
    late_s: float
    """How far behind the last send began."""
    failures: int


class _Send(NamedTuple):
    due: float
    batch: Batch


def sends(fleet: Fleet, seconds: float, seed: int) -> Iterator[_Send]:
    """Yield what all hosts ship in that time, by when it is due.

    Each host: a heartbeat a minute, 14 incidents an hour, of which each is shipped when it is named
    and at its end, and each ten minutes the waits of ten minutes.
    """
    rng = random.Random(f"{seed} growth {len(fleet.hosts)}")
    due: list[tuple[float, int, str]] = []
    for host in fleet.hosts:
        due += ((at, host.number, "beat") for at in _every(rng, BEAT_S, seconds))
        due += ((at, host.number, "waits") for at in _every(rng, WAITS_S, seconds))
        at = rng.expovariate(INCIDENTS_AN_HOUR / AN_HOUR)
        while at < seconds:
            due += ((at, host.number, "begun"), (at + rng.uniform(1, 20), host.number, "ended"))
            at += rng.expovariate(INCIDENTS_AN_HOUR / AN_HOUR)
    heapq.heapify(due)
    while due:
        at, number_of, what = heapq.heappop(due)
        if at < seconds:
            yield _Send(at, _batch(fleet, fleet.hosts[number_of], what, at))


def _every(rng: random.Random, step: float, seconds: float) -> Iterator[float]:
    at = rng.random() * step
    while at < seconds:
        yield at
        at += step


def _batch(fleet: Fleet, host: Host, what: str, at: float) -> Batch:
    moment = fleet.until_ms + int(at * 1000)
    if what == "beat":
        return fleet.heartbeat(host, moment)
    if what == "waits":
        minutes = [fleet.waits(moment - m * 60_000, (host,)) for m in range(10)]
        return Batch({"waits": tuple(line for one in minutes for line in one.lines["waits"])})
    made = fleet.incident(host, moment)
    return fleet.opened(made) if what == "begun" else made.batch


def grown(place: ClusterPlace, hosts: int, options: Options) -> Grown:
    """Ship as a fleet of that size does, and measure."""
    now_ms = time.time_ns() // 1_000_000
    fleet = Fleet(hosts, seed=options.seed + hosts, until_ms=now_ms)
    progress(f"growth: {hosts} hosts")
    todo = list(sends(fleet, options.growth_s, options.seed))
    waiting: queue.Queue[_Send | None] = queue.Queue()
    took: list[float] = []
    behind: list[float] = []
    failed: list[str] = []
    start = time.monotonic() + WARM_S
    clients = [
        threading.Thread(
            target=_client, args=(place.destination(), waiting, start, took, behind, failed)
        )
        for _ in range(min(CLIENTS, max(1, hosts)))
    ]
    for one in todo:
        waiting.put(one)
    for _ in clients:
        waiting.put(None)
    cpu = place.cpu_seconds()
    begun = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    seconds = max(options.growth_s, time.monotonic() - begun - WARM_S)
    after = place.cpu_seconds()
    used = {name: (after[name] - cpu[name]) / seconds for name in cpu}
    if not took:
        raise BenchError(f"nothing was sent of {hosts} hosts: {failed[:1]}")
    took.sort()
    return Grown(
        hosts,
        len(took) / seconds,
        sum(one.batch.rows for one in todo) / seconds,
        sum(used.values()),
        used.get("zookeeper", 0.0),
        place.parts(),
        place.rss_bytes(),
        took[len(took) // 2],
        took[int(0.99 * (len(took) - 1))],
        max(behind),
        len(failed),
    )


def _client(
    destination: Destination,
    waiting: queue.Queue[_Send | None],
    start: float,
    took: list[float],
    behind: list[float],
    failed: list[str],
) -> None:
    with closing(destination):
        while (one := waiting.get()) is not None:
            time.sleep(max(0.0, start + one.due - time.monotonic()))
            begin = time.monotonic()
            behind.append(begin - start - one.due)
            try:
                destination.send(one.batch)
            except SendError as error:
                failed.append(str(error))
            else:
                took.append(time.monotonic() - begin)


def growth_section(
    found: Sequence[Grown], row_bytes: dict[str, float], options: Options
) -> Section:
    """Return the table. ``row_bytes``: of a row of each table on disk, where they are known."""
    rows = []
    for one in found:
        late = f" (up to {one.late_s:.0f} s late)" if one.late_s > LATE_S else ""
        cells = {
            "inserts a second": number(round(one.inserts_s, 2)) + late,
            "rows a second": number(round(one.rows_s, 1)),
            "CPU of 4 servers": f"{100 * (one.cpu - one.zookeeper_cpu):.0f} %",
            "CPU of ZooKeeper": f"{100 * one.zookeeper_cpu:.0f} %",
            "memory of a server": f"{one.memory / 1e6:.0f} MB",
            "active parts": str(one.parts),
            "an insert": f"{1000 * one.median_s:.0f} ms",
            "99 of 100": f"{1000 * one.p99_s:.0f} ms",
        }
        if row_bytes:
            cells["bytes a day, one replica"] = in_bytes(one.hosts * a_day(row_bytes))
        rows.append(Row(f"{one.hosts} hosts", cells))
    failures = sum(one.failures for one in found)
    return Section(
        "growth",
        f"A cluster of two shards with two replicas as a fleet grows, {options.growth_s:g} s each",
        tuple(rows),
        checks=(f"{failures} sends failed",),
        goals=(("no send failed", not failures),),
        notes=(
            f"each host: a heartbeat a minute, {INCIDENTS_AN_HOUR} incidents an hour that are"
            f" shipped twice, waits each {WAITS_S / 60:g} minutes, {len(WAIT_KINDS)} rows a minute",
            "servers, ZooKeeper and what ships to them share the machine; 100 % is one CPU",
            f"up to {CLIENTS} connections at a time, one insert a send",
        ),
    )

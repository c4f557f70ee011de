# SPDX-License-Identifier: Apache-2.0
"""The shipping of one agent, alone in a process: ``python -m tests.bench.fleet_one_agent FILE``.

The kernel's clock of each thread says what it costs. Incidents are in a real store, with captures'
facts and samples as an agent has them. Prints one line of JSON.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallscope.model.incident import Incident
from stallscope.model.samples import Sample
from stallscope.model.waitlines import KindWaits, WaitLine
from stallscope.store.writing import announce

__all__ = ["Given", "Measured", "Work", "main"]

PATIENCE_S = 60.0
WATCH_EVERY_S = 5.0
"""The agent's loop says every few seconds what it watches."""
LINE_EVERY_S = 1.0


class Given(msgspec.Struct, frozen=True):
    """An incident; ``facts`` as JSON, since reading this must not load what reads facts."""

    incident: Incident
    facts: msgspec.Raw
    samples: tuple[Sample, ...]


class Work(msgspec.Struct, frozen=True):
    """What is measured: ``incidents`` one after the other, then so many heartbeats."""

    folder: str
    url: str
    given: tuple[Given, ...]
    incidents: int
    beats: int


class Measured(msgspec.Struct, frozen=True):
    """CPU seconds of one of each, and bytes of memory that shipping has added."""

    incident_s: float
    """Both revisions, until the engine has them."""
    beat_s: float
    call_incident_s: float
    """In the agent's loop."""
    call_watch_s: float
    call_line_s: float
    memory: int
    memory_modules: int
    """Of these, what loading the code takes."""


def _rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(path: str) -> int:
    """Measure, and print it."""
    work = msgspec.json.decode(Path(path).read_bytes(), type=Work)
    folders = _store(work)
    before = _rss()
    from stallscope.fleet.address import parse
    from stallscope.fleet.engines import opening
    from stallscope.fleet.facts import Facts
    from stallscope.fleet.settings import ShipSettings
    from stallscope.fleet.shipping.sender import Pace
    from stallscope.fleet.shipping.shipper import Shipper, Target
    from stallscope.fleet.shipping.watched import Watched

    loaded = _rss()
    address = parse(work.url)
    target = Target(address, opening.destination(address))
    pace = Pace(heartbeat=3600.0, first=0.0, first_beat=3600.0, spread=0.0)
    own = Path(work.folder)
    shipper = Shipper(own / "ship", ShipSettings(), [target], pace=pace)
    shipper.start()
    watched = Watched("db-1", "mysqld", 4711, "mysql", "9.7.4")
    shipper.watch(watched)
    facts = [msgspec.json.decode(one.facts, type=Facts) for one in work.given]

    def sent(rows: int) -> None:
        _until(lambda: _sent(shipper) >= rows, "the engine has the rows")

    def ship(number: int) -> int:
        place = number % len(work.given)
        incident, folder = folders[place]
        # Another second, another id: each is a row of its own.
        ns = incident.start_ns + number * 1_000_000_000
        fresh = msgspec.structs.replace(incident, id=f"{incident.id}-{number + 2}", start_ns=ns)
        begun = msgspec.structs.replace(fresh, end_ns=None)
        first = _sent(shipper)
        shipper.take("verdict", number, begun, folder, facts[place])
        sent(first + 1)
        second = _sent(shipper)
        shipper.take("end", number, fresh, folder, facts[place])
        sent(second + 1)
        return number

    ship(0)
    start, main_start = shipper.cpu_seconds, time.thread_time()
    for number in range(1, work.incidents + 1):
        ship(number)
    cpu = shipper.cpu_seconds - start
    del main_start  # the loop waits here, which an agent does not
    memory = _rss()
    calls = _calls(shipper, watched, folders[0][0])
    shipper.close(20.0)
    beat_s = _beats(work, Target(address, opening.destination(address)))
    found = Measured(
        cpu / work.incidents,
        beat_s,
        *calls,
        memory=memory - before,
        memory_modules=loaded - before,
    )
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return 0


def _store(work: Work) -> list[tuple[Incident, Path]]:
    """Write the incidents as an agent does."""
    incidents = Path(work.folder) / "store" / "incidents"
    incidents.mkdir(parents=True)
    found = []
    for number, one in enumerate(work.given):
        incident = msgspec.structs.replace(one.incident, id=f"{one.incident.id}{number}")
        folder = announce(incidents, incident, lambda size: None)
        folder.append_samples(one.samples)
        path = incidents / incident.id
        found.append((incident, path))
    return found


def _sent(shipper: object) -> int:
    numbers: Callable[[], dict[str, object]] = getattr(shipper, "numbers")  # noqa: B009
    return sum(int(getattr(one, "sent")) for one in numbers().values())  # noqa: B009


def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.002)


def _calls(shipper: object, watched: object, incident: Incident) -> tuple[float, float, float]:
    """Return the CPU seconds of the calls of the agent's loop: of an incident, a watch, a line."""
    count = 2000
    take, watch, waits = (getattr(shipper, name) for name in ("take", "watch", "waits"))
    start = time.thread_time()
    for number in range(200):
        take("none", number, incident, None, None)
    taken = (time.thread_time() - start) / 200
    start = time.thread_time()
    for _ in range(count):
        watch(watched)
    watching = (time.thread_time() - start) / count
    kinds = {
        name: KindWaits(count=31, total_ms=1240.5, max_ms=812.4, over=3, threshold_ms=10.0)
        for name in ("mutex", "rwlock", "cond", "fsync", "read", "write")
    }
    line = WaitLine("stallscope.waits/1", time.time(), 1.0, kinds, (), {})
    start = time.thread_time()
    for _ in range(count):
        waits(line)
    return taken, watching, (time.thread_time() - start) / count


def _beats(work: Work, target: object) -> float:
    """Return the CPU seconds of one heartbeat."""
    from stallscope.fleet.settings import ShipSettings
    from stallscope.fleet.shipping.sender import Pace
    from stallscope.fleet.shipping.shipper import Shipper, Target
    from stallscope.fleet.shipping.watched import Watched

    assert isinstance(target, Target)
    pace = Pace(heartbeat=0.02, first=0.0, first_beat=0.0, spread=0.0)
    shipper = Shipper(Path(work.folder) / "beats", ShipSettings(), [target], pace=pace)
    shipper.start()
    shipper.watch(Watched("db-1", "mysqld", 4711, "mysql", "9.7.4"))
    _until(lambda: _sent(shipper) >= 5, "heartbeats are sent")
    first, start = _sent(shipper), shipper.cpu_seconds
    _until(lambda: _sent(shipper) >= first + work.beats, "heartbeats are sent")
    last, end = _sent(shipper), shipper.cpu_seconds
    shipper.close(5.0)
    return (end - start) / (last - first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

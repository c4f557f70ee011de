# SPDX-License-Identifier: Apache-2.0
"""A day of incidents, all at once: how fast, how large, and whether each is there once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from stallscope.base.sending import SendError
from stallscope.fleet.batch import Batch
from tests.bench import progress
from tests.bench.fleet_options import Options
from tests.bench.fleet_places import Compared, FolderPlace, Place
from tests.bench.stats import BenchError, Row, Section, number
from tests.support.fleet.simulated import Fleet

__all__ = ["Loaded", "history_section", "load", "loaded", "send"]

SENDERS = 3
SIZE = 5_000
"""Incidents of one batch."""
AGAIN = 40
"""Of so many batches one is sent twice, as after an answer that was lost."""
WAITS_MINUTES = 30
"""Minutes of which the waits of all hosts are loaded, for the bytes of a row."""
WAITS_HOSTS = 200
TRIES = 6


class Loaded(NamedTuple):
    """What the load of one place was like."""

    place: str
    incidents: int
    seconds: float
    sizes: Mapping[str, tuple[int, int]]
    rows: Mapping[str, int]
    """Rows of each table that were sent, each once."""
    compared: Compared
    compact_s: float
    compacted: Mapping[str, tuple[int, int]]
    files: int
    """Of a folder, before compaction."""


def send(place: Place, batches: queue.Queue[Batch | None], failed: list[str]) -> None:
    """Send until None comes; a batch that is not taken is tried again."""
    with closing(place.destination()) as destination:
        while (batch := batches.get()) is not None:
            for left in reversed(range(TRIES)):
                try:
                    destination.send(batch)
                    break
                except SendError as error:
                    if error.refused or not left:
                        failed.append(str(error))
                        break
                    time.sleep(min(error.after, 2.0) or 0.5)
                except Exception as error:
                    failed.append(f"{type(error).__name__}: {error}")
                    break


def load(
    place: Place,
    fleet: Fleet,
    count: int,
    steps: Sequence[int] = (),
    at_step: Callable[[int], None] = lambda rows: None,
) -> tuple[dict[str, int], dict[str, int], float]:
    """Ship a day. At each of ``steps`` incidents all of them are there, and ``at_step`` is called.

    Return the revisions by uid, rows by table, and the seconds without those steps.
    """
    keys: dict[str, int] = {}
    agents, stacks = fleet.agents(), fleet.stacks()
    rows = {"agents": agents.rows, "stacks": stacks.rows, "waits": 0}
    spent = 0.0
    start = time.monotonic()
    failed: list[str] = []
    waits = [
        fleet.waits(fleet.until_ms - (minute + 1) * 60_000, fleet.hosts[:WAITS_HOSTS])
        for minute in range(WAITS_MINUTES)
    ]
    rows["waits"] = sum(batch.rows for batch in waits)
    _all(place, [agents, stacks, *waits], failed)
    made = fleet.incidents(count, size=min(SIZE, max(1, count // 20)))
    bounds = [*sorted({step for step in steps if step < count}), count]
    done = number_of = 0
    for bound in bounds:
        part: list[Batch] = []
        with _Senders(place, failed) as senders:
            for one in made:
                keys.update(one.keys)
                senders.put(one.batch)
                if number_of % AGAIN == 0:
                    part.append(one.batch)
                number_of += 1
                done += one.batch.rows
                progress(f"history, {place.name}: {done} of {count} incidents")
                if done >= bound:
                    break
            for batch in part:
                senders.put(batch)
        if failed:
            raise BenchError(f"{place.name} did not take a batch: {failed[0]}")
        if bound != count:
            before = time.monotonic()
            at_step(done)
            spent += time.monotonic() - before
    rows["incidents"] = len(keys)
    return keys, rows, time.monotonic() - start - spent


class _Senders:
    """Threads that send batches; at the end all were sent."""

    def __init__(self, place: Place, failed: list[str]) -> None:
        self._queue: queue.Queue[Batch | None] = queue.Queue(2)
        self._failed = failed
        self._threads = [
            threading.Thread(target=send, args=(place, self._queue, failed), daemon=True)
            for _ in range(SENDERS)
        ]

    def __enter__(self) -> _Senders:
        for thread in self._threads:
            thread.start()
        return self

    def put(self, batch: Batch) -> None:
        """Have it sent."""
        while not self._failed:
            try:
                self._queue.put(batch, timeout=1.0)
                return
            except queue.Full:
                continue

    def __exit__(self, *_: object) -> None:
        for _one in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


def _all(place: Place, batches: Sequence[Batch], failed: list[str]) -> None:
    with _Senders(place, failed) as senders:
        for batch in batches:
            senders.put(batch)


def history_section(loads: Sequence[Loaded], options: Options) -> Section:
    """Return the table of these loads."""
    rows = []
    for one in loads:
        rows.append(Row(one.place, _cells(one, one.sizes, one.seconds)))
        if one.compacted:
            rows.append(
                Row(
                    f"{one.place}, compacted",
                    _cells(one, one.compacted, one.compact_s, compacted=True),
                )
            )
    good = all(one.compared.good for one in loads)
    return Section(
        "history",
        f"{options.incidents} incidents of {options.hosts} hosts in 24 hours, shipped at once",
        tuple(rows),
        checks=("ids and revisions of all incidents were compared with what was shipped",),
        goals=(("nothing lost, nothing doubled", good),),
        notes=(
            f"seed {options.seed}; one batch of {AGAIN} was sent twice",
            "bytes on disk of one replica, those of an incident without its stacks",
        ),
    )


def _cells(
    one: Loaded, sizes: Mapping[str, tuple[int, int]], seconds: float, *, compacted: bool = False
) -> dict[str, str]:
    cells = {
        "seconds": f"{seconds:.0f}",
        "incidents a second": "-" if compacted else number(round(one.incidents / seconds)),
        "lost": str(one.compared.lost),
        "doubled": str(one.compared.doubled),
    }
    for table in ("incidents", "stacks", "waits", "agents"):
        if table in sizes and one.rows.get(table):
            cells[f"bytes of a row of {table}"] = number(
                round(sizes[table][1] / one.rows[table], 1)
            )
    cells["files"] = str(one.files) if one.files and not compacted else "-"
    return cells


def loaded(
    place: Place,
    options: Options,
    fleet: Fleet,
    compare: Callable[[Place, Mapping[str, int]], Compared],
    steps: Sequence[int] = (),
    at_step: Callable[[int], None] = lambda rows: None,
    before_compaction: Callable[[], None] = lambda: None,
) -> Loaded:
    """Load a place, and compare what it has."""
    keys, rows, seconds = load(place, fleet, options.incidents, steps, at_step)
    sizes = place.sizes()
    compact_s, compacted, files = 0.0, {}, 0
    if isinstance(place, FolderPlace):
        files = place.files()
        before_compaction()
        progress("history, folder: compaction")
        start = time.monotonic()
        place.compact()
        compact_s = time.monotonic() - start
        compacted = place.sizes()
    progress(f"history: comparing what {place.name} has")
    found = compare(place, keys)
    return Loaded(place.name, len(keys), seconds, sizes, rows, found, compact_s, compacted, files)

# SPDX-License-Identifier: Apache-2.0
"""A fleet on its engines: what is lost when they are killed, how fast and large it is, what asking
and shipping cost, and how that grows with the fleet. All hosts are simulated; the rows are of real
stalls (tests/support/fleet/realincidents.py)."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path

import msgspec

from stallscope.base.text import one_line
from tests.bench import (
    fleet_cost,
    fleet_growth,
    fleet_history,
    fleet_minute,
    fleet_questions,
    progress,
)
from tests.bench.fleet_history import Loaded
from tests.bench.fleet_options import Options
from tests.bench.fleet_places import (
    ClusterPlace,
    FolderPlace,
    Place,
    chdb_place,
    cluster_place,
    compared,
    folder_place,
)
from tests.bench.fleet_questions import Timed
from tests.bench.fleet_sizing import sizing_section
from tests.bench.stats import BenchError, Section, wanted
from tests.support.fleet.chdbengine import chdb_missing
from tests.support.fleet.clickhouse import ClickHouseSays
from tests.support.fleet.cluster import cluster_missing
from tests.support.fleet.simulated import Fleet

__all__ = ["PARTS", "sections"]

PARTS = ("minute", "history", "questions", "agent", "growth")
STEPS = (300, 30, 3)
"""Parts of all incidents at which the questions are asked too."""
STEP_RUNS = 3
NAMES = {
    "ClickHouse": "ClickHouse 18, 2 shards",
    "chDB": "ClickHouse 26 (chDB)",
    "folder": "folder, DuckDB",
}
LEAST_FREE = 12 << 30
"""Bytes on disk for a million incidents on four servers and in a folder."""


def sections(
    _server: str, quick: bool, only: Sequence[str], options: Options | None = None
) -> Iterator[Section]:
    """Yield the tables that are wanted: minute, history, questions, agent, growth."""
    options = options or Options()
    parts = wanted(PARTS, only)
    if options.page:
        yield from _kept(options.results, parts)
        return
    options.results.mkdir(parents=True, exist_ok=True)
    needed = options.incidents * LEAST_FREE // 1_000_000
    if shutil.disk_usage(options.results).free < needed:
        raise BenchError(f"{options.results}: less than {needed >> 20} MiB are free")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.results)))
        bench = _Bench(stack, work, options)
        try:
            for section in bench.sections(parts):
                _keep(options.results, section)
                yield section
        except (ClickHouseSays, HTTPException, OSError) as error:
            raise BenchError(f"{type(error).__name__}: {one_line(str(error), 500)}") from error


class _Bench:
    """The places, which are made when they are first needed, and what is known of them."""

    def __init__(self, stack: ExitStack, work: Path, options: Options) -> None:
        self._stack = stack
        self._work = work
        self._options = options
        self._cluster: ClusterPlace | None = None
        self._missing = cluster_missing()
        self._no_chdb = chdb_missing()
        self._loads: list[Loaded] = []
        self._before: list[Timed] = []
        self._steps: list[tuple[int, list[Timed]]] = []
        self._places: list[Place] = []
        now_ms = time.time_ns() // 1_000_000
        self._fleet = Fleet(options.hosts, seed=options.seed, until_ms=now_ms)

    def sections(self, wanted: Sequence[str]) -> Iterator[Section]:
        """Yield the sections of these parts."""
        makers: dict[str, Callable[[], Iterator[Section]]] = {
            "minute": self._minute,
            "history": self._history,
            "questions": self._questions,
            "agent": self._agent,
            "growth": self._growth,
        }
        for part in wanted:
            for section in makers[part]():
                yield self._said(section)
            progress("")

    def _said(self, section: Section) -> Section:
        left_out = [*section.left_out]
        if self._missing is not None:
            left_out.append(f"ClickHouse: {self._missing}")
        if self._no_chdb is not None and section.id in ("history", "questions"):
            left_out.append(f"chDB: {self._no_chdb}")
        return msgspec.structs.replace(section, left_out=tuple(left_out))

    def _folder(self, name: str) -> FolderPlace:
        work = self._work / name
        work.mkdir()
        return self._stack.enter_context(folder_place(work))

    def _new_cluster(self, name: str) -> ClusterPlace:
        """Start a cluster, and end the one before: each part has the machine for itself."""
        self._end_cluster()
        progress("starting a cluster")
        work = self._work / name
        work.mkdir()
        own = ExitStack()
        self._stack.push(own)
        self._cluster = own.enter_context(cluster_place(work))
        self._own = own
        return self._cluster

    def _end_cluster(self) -> None:
        if self._cluster is not None:
            self._own.close()
            self._cluster = None

    def _minute(self) -> Iterator[Section]:
        found = [
            (
                "folder",
                fleet_minute.minute(self._folder("minute"), self._options, self._work / "spools-f"),
            )
        ]
        if self._missing is None:
            place = self._new_cluster("minute-cluster")
            outcome = fleet_minute.minute(place, self._options, self._work / "spools-c")
            found.append(("ClickHouse, a shard killed", outcome))
        yield fleet_minute.section(found, self._options)

    def _load(self) -> None:
        """Load both places, once."""
        if self._loads:
            return
        if self._missing is None:
            self._load_cluster()
        if self._no_chdb is None:
            self._load_chdb()
        folder = self._folder("history")

        def before() -> None:
            first = ("signatures",)
            name = "folder, not compacted"
            self._before = fleet_questions.timed(folder, name, self._fleet, 1, first)

        self._places.append(folder)
        self._loads.append(
            fleet_history.loaded(
                folder, self._options, self._fleet, compared, before_compaction=before
            )
        )

    def _load_cluster(self) -> None:
        place = self._new_cluster("history-cluster")

        def at_step(rows: int) -> None:
            times = fleet_questions.timed(place, "ClickHouse", self._fleet, STEP_RUNS)
            self._steps.append((rows, times))

        steps = [self._options.incidents // part for part in STEPS]
        self._places.append(place)
        self._loads.append(
            fleet_history.loaded(place, self._options, self._fleet, compared, steps, at_step)
        )

    def _load_chdb(self) -> None:
        work = self._work / "history-chdb"
        work.mkdir()
        place = self._stack.enter_context(chdb_place(work))
        self._places.append(place)
        self._loads.append(fleet_history.loaded(place, self._options, self._fleet, compared))

    def _history(self) -> Iterator[Section]:
        self._load()
        self._row_bytes()
        yield fleet_history.history_section(self._loads, self._options)

    def _questions(self) -> Iterator[Section]:
        self._load()
        times: list[Timed] = []
        for place in self._places:
            name = NAMES[place.name]
            times += fleet_questions.timed(place, name, self._fleet, self._options.runs)
        yield fleet_questions.questions_section([*times, *self._before], self._options)
        if self._steps:
            whole = [one for one in times if one.engine == NAMES["ClickHouse"]]
            steps = [*self._steps, (self._options.incidents, whole)]
            yield fleet_questions.by_rows_section(steps)

    def _agent(self) -> Iterator[Section]:
        places: list[Place] = [self._folder("agent")]
        if self._missing is None:
            places.append(self._cluster or self._new_cluster("agent-cluster"))
        found = [
            (place.name, fleet_cost.agent_cost(place, self._options, self._work / f"a{number}"))
            for number, place in enumerate(places)
        ]
        yield fleet_cost.cost_section(found, self._options)

    def _growth(self) -> Iterator[Section]:
        if self._missing is not None:
            yield fleet_growth.growth_section((), {}, self._options)
            return
        place = self._new_cluster("growth-cluster")
        found = [fleet_growth.grown(place, hosts, self._options) for hosts in self._options.growth]
        row_bytes = self._row_bytes()
        yield fleet_growth.growth_section(found, row_bytes, self._options)
        if row_bytes:
            yield sizing_section(row_bytes)

    def _row_bytes(self) -> dict[str, float]:
        """Return the bytes of a row of each table on ClickHouse, of this run or the latest."""
        file = self._options.results / "rows.json"
        known = [one for one in self._loads if one.place == "ClickHouse"]
        if known:
            found = {
                table: size / known[0].rows[table]
                for table, (_, size) in known[0].sizes.items()
                if known[0].rows.get(table)
            }
            file.write_bytes(msgspec.json.encode(found))
            return found
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, float])
        except (OSError, msgspec.MsgspecError):
            return {}


class _Kept(msgspec.Struct, frozen=True):
    """A section in a file, with when it was measured."""

    date: str
    load: str
    section: Section


def _keep(results: Path, section: Section) -> None:
    load = Path("/proc/loadavg").read_text().split()[0]
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    kept = _Kept(date, load, section)
    (results / f"{section.id}.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(kept)) + b"\n"
    )


def _kept(results: Path, wanted: Sequence[str]) -> Iterator[Section]:
    """Yield what was measured last."""
    for part in wanted:
        for path in sorted(results.glob(f"{part}*.json")):
            try:
                kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
            except msgspec.MsgspecError as error:
                raise BenchError(f"{path}: {error}") from None
            note = f"measured {kept.date}, load average {kept.load} at its end"
            yield msgspec.structs.replace(kept.section, notes=(*kept.section.notes, note))

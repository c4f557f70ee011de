# SPDX-License-Identifier: Apache-2.0
"""What a durable commit costs a server now, and what each other durability setting would give.

From one measurement at one setting: the time of syncs (stallscope.analyzers.syncfit), commits, CPU
time, clients. By which syncs a commit goes is known of each server and checked by what was counted;
stallscope.analyzers.commitmodel turns that into commits a second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from stallscope.analyzers import commitmodel
from stallscope.analyzers.commitmodel import Load, Station
from stallscope.analyzers.syncfit import SyncCost, SyncSums, cost

__all__ = [
    "ROWS",
    "SETTINGS",
    "ClassUse",
    "Durability",
    "Measured",
    "ModelFacts",
    "Prediction",
    "RowRate",
    "Setting",
    "ThreadUse",
    "analyze",
]

BINLOG = "binlog"
REDO = "redo"

ROWS = (1, 10, 1000, 10_000)
_FEW_SYNCS = 3
_SYSTEM_SHARE = 1 / 3
"""Of user time: system time of statements. What is above it is of syncs and writes, whose time is
known by itself."""
_DOUBT = 2.0
"""By so much the interval lets the effect of pauses be smaller or larger."""
_S_DOUBT = 0.1
_MODEL_DOUBT = 1.15
"""What no input explains: contention, and a machine that is not equally fast all the time
(./scripts/bench storage-sync)."""
_FEW_TURNS = 0.5
_MOST_OTHERS = 0.8
_SURE = 2.0
"""Standard errors from which on a number is not taken for 0."""
_ITERATIONS = 8
_SETTLED = 0.02
"""How much of the work is done cold is then known well enough."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class Setting(msgspec.Struct, frozen=True, order=True):
    """Values of innodb_flush_log_at_trx_commit and sync_binlog; without a binlog that is 0."""

    flush: int
    sync_binlog: int


SETTINGS = tuple(Setting(flush, sync) for flush in (1, 2, 0) for sync in (1, 0))
"""The safest first."""


class ClassUse(msgspec.Struct, frozen=True):
    """What went to the files of one class."""

    sums: SyncSums = SyncSums()
    writes: int = 0
    write_ns: int = 0
    direct: bool = False
    """Most of it with O_DIRECT."""
    dsync: bool = False
    """Each write is a sync: O_SYNC, O_DSYNC."""
    file_system: str | None = None


class ThreadUse(msgspec.Struct, frozen=True):
    """What one thread of the server had of CPUs."""

    seconds: float
    turns: int
    """How often it got one."""
    own: bool = False
    """It served this measurement."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. None is unknown."""

    seconds: float
    family: str | None
    version: str | None = None
    binlog: bool | None = None
    flush: int | None = None
    sync_binlog: int | None = None
    commits: float | None = None
    rows: float | None = None
    clients: int | None = None
    """Sessions that had a statement meanwhile."""
    running: float | None = None
    """How many of them had one at a time, on average."""
    running_error: float = 0.0
    """Standard error of that."""
    cpu_user: float | None = None
    """Seconds of CPU of the server."""
    cpu_system: float | None = None
    threads: tuple[ThreadUse, ...] = ()
    """Of the server; those that began or ended meanwhile are left out."""
    cpu_clients: float = 0.0
    """Of clients on the same host."""
    cpus: int = 1
    pause_factor: float | None = None
    """By how much longer a statement takes after a pause than right after another one."""
    classes: Mapping[str, ClassUse] = {}
    storage: SyncCost | None = None
    """As --probe-dir measured it."""


class Prediction(msgspec.Struct, frozen=True):
    """Commits a second at one setting."""

    setting: Setting
    commits_per_s: float
    low: float
    high: float
    now: bool = False


class RowRate(msgspec.Struct, frozen=True):
    """Rows a second with so many rows a transaction, at the measured setting."""

    rows_per_commit: int
    rows_per_s: float
    low: float
    high: float


class ModelFacts(msgspec.Struct, frozen=True):
    """What the predictions rest on, of one commit."""

    cpu_us: float
    """CPU time, without that of syncs."""
    delay_us: float
    """Everything else between two commits of a client."""
    delay_most_us: float
    """What it may be as well."""
    pause_factor: float
    """By how much longer a commit takes here than right after another one."""
    error: float
    """The model's rate at the measured setting, by the measured one, less 1, before the time at
    syncs was multiplied by ``scale``."""
    scale: float


class Durability(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. None is unknown."""

    seconds: float
    costs: Mapping[str, SyncCost]
    """By class of files."""
    setting: Setting | None = None
    binlog: bool | None = None
    commits_per_s: float | None = None
    clients: int | None = None
    syncs_per_commit: Mapping[str, float] = {}
    commits_per_sync: Mapping[str, float] = {}
    sync_share: float | None = None
    """Of the time of a client from one commit to the next, what it spends on syncs."""
    model: ModelFacts | None = None
    predictions: tuple[Prediction, ...] = ()
    rows: tuple[RowRate, ...] = ()
    why_not: str | None = None
    """Why there are no predictions."""
    notes: tuple[str, ...] = ()


def analyze(found: Measured) -> Durability:
    """Return costs, and predictions where there is enough to make them from."""
    costs = {name: cost(use.sums) for name, use in found.classes.items() if use.sums.syncs}
    commits = found.commits
    setting = _setting(found)
    per_commit, per_sync = {}, {}
    if commits:
        per_commit = {name: one.syncs / commits for name, one in costs.items()}
        per_sync = {
            name: commits / costs[name].syncs
            for name in (REDO, BINLOG)
            if name in costs and _in_the_way(name, setting)
        }
    result = Durability(
        seconds=found.seconds,
        costs=costs,
        setting=setting,
        binlog=found.binlog,
        commits_per_s=None if commits is None else commits / found.seconds,
        clients=found.clients,
        syncs_per_commit=per_commit,
        commits_per_sync=per_sync,
        why_not=_why_not(found, setting),
        notes=tuple(_notes(found)),
    )
    if result.why_not is not None or setting is None:
        return result
    return _predicted(_Model(found, setting, costs), result)


def _setting(found: Measured) -> Setting | None:
    if found.flush is None or found.flush not in (0, 1, 2):
        return None
    if found.binlog is False:
        return Setting(found.flush, 0)
    return None if found.sync_binlog is None else Setting(found.flush, found.sync_binlog)


def _in_the_way(name: str, setting: Setting | None) -> bool:
    """Return whether a commit waits for syncs of these files."""
    if setting is None:
        return False
    return setting.flush == 1 if name == REDO else setting.sync_binlog > 0


def _why_not(found: Measured, setting: Setting | None) -> str | None:
    if found.family == "postgres":
        return "predictions are made for MySQL and MariaDB; PostgreSQL has synchronous_commit"
    if found.commits is None:
        return "commits are unknown without SQL: nothing to predict from"
    if found.commits == 0:
        return f"no commits in {found.seconds:.0f} s: nothing to predict from"
    if found.commits < 20:
        return f"{found.commits:.0f} commits in {found.seconds:.0f} s: too few to predict from"
    if setting is None or found.binlog is None:
        return "the server's durability settings are unknown: nothing to predict from"
    if found.cpu_user is None or found.cpu_system is None:
        return "the server's CPU time is unknown: nothing to predict from"
    return None


def _notes(found: Measured) -> list[str]:
    notes = []
    if found.binlog is False:
        notes.append("The binary log is off: sync_binlog changes nothing.")
    redo = found.classes.get(REDO, ClassUse())
    if redo.dsync:
        notes.append("Each write of the redo log is a sync (O_DSYNC): 2 costs as much as 1 does.")
    # Temporary files may well be in memory.
    logs = (found.classes.get(name, ClassUse()) for name in (REDO, BINLOG))
    systems = {use.file_system for use in logs if use.file_system}
    if "tmpfs" in systems or "ramfs" in systems:
        notes.append("The files are in memory (tmpfs): a sync does nothing, and nothing is safe.")
    network = {name for name in systems if name.startswith(("nfs", "cifs", "smb"))}
    if network:
        notes.append(
            f"The files are on {', '.join(sorted(network))}: a sync is a request to its server."
        )
    return notes


def _path(found: Measured) -> tuple[tuple[str, bool], ...]:
    """Return by which files' syncs a commit goes, and whether one sync serves all that wait."""
    numbers = _numbers(found.version)
    if not found.binlog:
        return ((REDO, True),)
    if found.family == "mysql" and numbers < (5, 6, 0):
        # Prepare, then the binlog under prepare_commit_mutex, then the commit.
        return ((REDO, True), (BINLOG, False), (REDO, True))
    return ((REDO, True), (BINLOG, True))


def _numbers(version: str | None) -> tuple[int, int, int]:
    match = _VERSION.match(version or "")
    if match is None:
        return (99, 0, 0)
    return (int(match[1]), int(match[2]), int(match[3] or 0))


class _Model:
    """The server as queues, at any setting."""

    def __init__(self, found: Measured, setting: Setting, costs: Mapping[str, SyncCost]) -> None:
        assert found.commits
        assert found.cpu_user is not None
        assert found.cpu_system is not None
        self.found = found
        self.setting = setting
        self.costs = costs
        self.rate = found.commits / found.seconds
        self.clients = max(1, found.clients or 1)
        self.unknown: set[str] = set()
        """Classes of files whose syncs were not measured."""
        self.guessed: set[str] = set()
        """Classes of files whose syncs were measured elsewhere."""
        share = self._share_of_commits()
        of_statements = share * self._system_of_statements()
        self.cpu = (share * found.cpu_user + of_statements + found.cpu_clients) / found.commits
        self.io_cpu = self._io_cpu(share * found.cpu_system - of_statements)
        self.pauses = self._pauses()
        self.scale = 1.0
        self.delay = self._outside()
        load = self._with_io(self.load(setting, cpu=self.cpu, delay=self.delay))
        self.idle = max(0.0, found.cpus / self.rate - load.cpu)
        """Seconds of idle CPUs a commit: caches get cold in them."""
        self.error = commitmodel.run(load).commits / self.rate - 1
        # What is left over is time at the syncs in excess of theirs, or time of the clients: only
        # the second is there without syncs too.
        self.most_delay = commitmodel.delay_of(load, self.rate)
        if any(_in_the_way(station.name, setting) for station in load.path):
            self.scale = commitmodel.scale_of(load, self.rate)
        else:
            self.delay = self.most_delay

    def _system_of_statements(self) -> float:
        """Return the seconds of system time that are not of writes and syncs."""
        return min(self.found.cpu_system or 0.0, _SYSTEM_SHARE * (self.found.cpu_user or 0.0))

    def _share_of_commits(self) -> float:
        """Return what share of the server's CPU time went into commits.

        A thread that commits, or works for those that do, gets a CPU at least once a commit of a
        client: one that is asleep for longer does so whether there are commits or not.
        """
        found = self.found
        assert found.commits
        total = (found.cpu_user or 0.0) + (found.cpu_system or 0.0)
        least = _FEW_TURNS * found.commits / self.clients
        others = sum(one.seconds for one in found.threads if one.own or one.turns < least)
        return 1 - min(others / total, _MOST_OTHERS) if total else 1.0

    def _io_cpu(self, seconds: float) -> float:
        """Return the seconds of CPU a second of writes and syncs that commits wait for."""
        uses = [self.found.classes.get(name, ClassUse()) for name in (REDO, BINLOG)]
        syncs = sum(
            one.mean_ms * one.syncs / 1e3
            for name, one in self.costs.items()
            if one.mean_ms is not None and _in_the_way(name, self.setting)
        )
        total = sum(use.write_ns for use in uses) / 1e9 + syncs
        return min(1.0, seconds / total) if total else 0.0

    def _with_io(self, load: Load) -> Load:
        """Add the CPU time that writes and syncs of a commit take."""
        if not self.io_cpu:
            return load
        syncs = commitmodel.run(load).syncs
        seconds = {station.name: station.seconds for station in load.path}
        cpu = self.io_cpu * sum(syncs[name] * each for name, each in seconds.items())
        return msgspec.structs.replace(load, cpu=load.cpu + cpu)

    def _outside(self) -> float:
        """Return the seconds of a client from one statement to the next, a commit."""
        running = self.found.running
        if running is None:
            return 0.0
        idle = self.clients - running
        # Of few samples, one that meets a client between two statements says little.
        if idle < _SURE * self.found.running_error:
            return 0.0
        # A thread that reads or sends a packet does not count as running.
        packets = self.found.cpu_clients + self._system_of_statements()
        return max(0.0, idle / self.rate - packets / (self.found.commits or 1))

    def _pauses(self) -> float:
        """Return by how much longer a commit takes here than right after another one.

        A sync wakes all that it served, and what they run is cold for the first of them alone.
        """
        found = self.found
        factor = max(1.0, found.pause_factor or 1.0)
        assert found.commits
        syncs = [
            one.syncs / found.commits
            for name, one in self.costs.items()
            if name in (REDO, BINLOG) and _in_the_way(name, self.setting)
        ]
        cold = min(1.0, max(syncs, default=1.0))
        return 1 + (factor - 1) * cold

    def seconds(self, name: str, setting: Setting, work: float = 1.0) -> float:
        """Return how long one commit, or group of them, is at these files. ``work`` multiplies the
        time of writes to the page cache, which is CPU time: it depends on caches as that of
        statements does. With O_DIRECT it is that of the device."""
        use = self.found.classes.get(name, ClassUse())
        if use.direct:
            work = 1.0
        # One at a time writes, whether it syncs or not.
        write = work * use.write_ns / use.writes / 1e9 if use.writes else 0.0
        if name == BINLOG:
            if setting.sync_binlog == 0:
                return write
            return write + self.sync(BINLOG) / setting.sync_binlog
        if setting.flush == 0:
            return 0.0
        if use.dsync:
            return self.sync(REDO)
        if setting.flush == 2:
            return write
        syncs = use.sums.syncs
        if self.setting.flush == 1 and syncs:
            write = work * use.write_ns / syncs / 1e9
        return write + self.sync(REDO)

    def sync(self, name: str) -> float:
        """Return the seconds of one sync of these files, or of others where none was seen."""
        mine = self.costs.get(name)
        if mine is not None and mine.syncs >= _FEW_SYNCS and mine.mean_ms is not None:
            return mine.mean_ms / 1e3
        storage = self.found.storage
        if storage is not None and storage.mean_ms is not None:
            self.guessed.add(name)
            return storage.mean_ms / 1e3
        others = [one for one in self.costs.values() if one.mean_ms is not None]
        if not others:
            self.unknown.add(name)
            return 0.0
        self.guessed.add(name)
        most = max(others, key=lambda one: one.syncs)
        return (most.mean_ms or 0.0) / 1e3

    def load(
        self,
        setting: Setting,
        *,
        cpu: float,
        delay: float,
        work: float = 1.0,
        more: Mapping[str, float] | None = None,
    ) -> Load:
        """Return the model's input; ``work`` multiplies the time of writes, ``more`` are seconds of
        a class's syncs."""
        path = []
        binlog = self.found.classes.get(BINLOG, ClassUse())
        # Linux holds a FUSE file's lock during its sync, which each write needs; a server that
        # writes a group while it syncs the one before waits there.
        held = (
            self.found.family == "mysql"
            and _numbers(self.found.version) >= (5, 6, 0)
            and (binlog.file_system or "").startswith("fuse")
            and setting.sync_binlog > 0
        )
        for name, group in _path(self.found):
            seconds = self.seconds(name, setting, work) + (more or {}).get(name, 0.0)
            holds = held and name == REDO
            if seconds <= 0 and not holds:
                continue
            one = self.costs.get(name)
            deviation = (one.deviation_ms or 0.0) / 1e3 if one is not None else 0.0
            path.append(
                Station(
                    name,
                    seconds,
                    min(deviation, 0.5 * seconds),
                    group,
                    held_by=BINLOG if holds else "",
                )
            )
        return Load(
            clients=self.clients,
            cpu=cpu,
            cpus=self.found.cpus,
            delay=delay,
            path=tuple(path),
            together=self.found.family != "mariadb",
        )

    def commits(
        self,
        setting: Setting,
        *,
        doubt: float = 1.0,
        sync: float = 1.0,
        work: float = 1.0,
        more: Mapping[str, float] | None = None,
        waits: bool = False,
    ) -> float:
        """Return commits a second. ``doubt`` multiplies the effect of pauses, ``sync`` the time of
        syncs, ``work`` what a commit does besides; with ``waits`` clients take all the time that
        the model does not explain."""
        pauses = max(1.0, self.pauses * doubt)
        scale = sync * (1.0 if waits else self.scale)
        delay = self.most_delay if waits else self.delay
        cold = 1.0
        rate = self.rate
        for iteration in range(_ITERATIONS):
            # How much is done cold follows from the pauses, and they from the rate.
            factor = work * (1 / pauses + (1 - 1 / pauses) * cold)
            load = self.load(
                setting, cpu=self.cpu * factor, delay=delay * factor, work=factor, more=more
            )
            load = self._with_io(load)
            rate = commitmodel.run(commitmodel.scaled(load, scale)).commits
            if pauses == 1 or self.idle <= 0:
                break
            idle = max(0.0, self.found.cpus / rate - load.cpu)
            now = min(1.0, idle / self.idle / work)
            if abs(now - cold) < _SETTLED:
                break
            # The rates of a path with syncs may swing around the solution.
            cold = (cold + now) / 2 if iteration > 1 else now
        return rate

    def interval(
        self, setting: Setting, work: float = 1.0, more: Mapping[str, float] | None = None
    ) -> tuple[float, float, float]:
        """Return a prediction, and the least and most that it may be."""
        rates = [
            self.commits(setting, doubt=doubt, sync=sync, work=work, more=more, waits=waits)
            for doubt, sync, waits in (
                (1.0, 1.0, False),
                (1 / _DOUBT, 1 + _S_DOUBT, False),
                (_DOUBT, 1 - _S_DOUBT, False),
                (1.0, 1.0, True),
            )
        ]
        return rates[0], min(rates) / _MODEL_DOUBT, max(rates) * _MODEL_DOUBT


def _predicted(model: _Model, result: Durability) -> Durability:
    predictions = []
    without_binlog = not model.found.binlog
    for setting in SETTINGS:
        if without_binlog and setting.sync_binlog:
            continue
        now = setting == model.setting
        point = low = high = model.rate
        if not now:
            point, low, high = model.interval(setting)
        predictions.append(Prediction(setting, point, low, high, now))
    if model.unknown:
        files = " and ".join(sorted(model.unknown))
        return msgspec.structs.replace(
            result,
            why_not=f"no sync was seen, so the price of a sync of {files} is unknown:"
            " measure it with --probe-dir DIR --allow-write",
        )
    rows = _rows(model)
    highest = [one.high for one in predictions] + [one.high for one in rows]
    if not all(map(math.isfinite, highest)):
        return msgspec.structs.replace(
            result, why_not="the server's CPU time is too short to count: nothing to predict from"
        )
    notes = list(result.notes)
    if model.guessed:
        files = " and ".join(sorted(model.guessed))
        where = "--probe-dir" if model.found.storage is not None else "the server's other files"
        notes.append(f"The price of a sync of {files} is that of {where}: few or none was seen.")
    waits = 1 - (model.cpu + model.delay) * model.rate / model.clients
    return msgspec.structs.replace(
        result,
        predictions=tuple(predictions),
        rows=rows,
        sync_share=min(1.0, max(0.0, waits)),
        model=ModelFacts(
            model.cpu * 1e6,
            model.delay * 1e6,
            model.most_delay * 1e6,
            model.pauses,
            model.error,
            model.scale,
        ),
        notes=tuple(notes),
    )


def _rows(model: _Model) -> tuple[RowRate, ...]:
    """Return rows a second at the measured setting: work and bytes grow with the rows of a
    transaction, the fixed cost of a sync does not."""
    found = model.found
    if not found.rows or not found.commits:
        return ()
    each = found.rows / found.commits
    rates = []
    for rows in ROWS:
        more = {}
        for name, one in model.costs.items():
            if one.determined and one.r_mb_s and one.mean_bytes:
                bytes_each = one.mean_bytes * one.syncs / found.rows
                more[name] = max(-0.5, (rows - each) * bytes_each / one.r_mb_s / 1e6)
                # A sync is never shorter than K.
                more[name] = max(more[name], ((one.k_ms or 0) - (one.mean_ms or 0)) / 1e3)
        point, low, high = model.interval(model.setting, work=rows / each, more=more)
        rates.append(RowRate(rows, point * rows, low * rows, high * rows))
    return tuple(rates)

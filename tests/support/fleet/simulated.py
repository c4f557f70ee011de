# SPDX-License-Identifier: Apache-2.0
"""A simulated fleet: real stalls (realincidents.py) on hosts and at times that were never there.

What it has to show: a new version of MySQL that reaches more hosts by the hour, with a stall that
nobody knows and more of one that was there before; a shared disk that stalls one rack for ten
minutes; hosts whose agent went silent. All of it follows from the seed.

All rows of a simulated fleet have the agent's version ``simulated``: reports and pictures say so.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from stallscope.fleet.batch import Batch, make
from stallscope.fleet.tables import AgentRow, IncidentRow, Row, WaitRow, day_of
from tests.support.fleet.linetemplate import LineTemplate, Sighting
from tests.support.fleet.realincidents import NEW_STALL, RealIncident, load

__all__ = ["AGENT_VERSION", "NEW_VERSION", "OLD_VERSION", "REGRESSED", "Fleet", "Host", "Made"]

AGENT_VERSION = "simulated"
OLD_VERSION, NEW_VERSION = "9.7.3", "9.7.4"
REGRESSED = "innodb-page-io"
REGRESSION = 5.0
"""How many times more often the new version has that stall."""
NEW_STALL_WEIGHT = 0.4
STORM_STALLS = ("redo-sync-mysql97-mysql97", "redo-sync-mariadb-mariadb", "redo-sync-mysql55")
STORM_SHARE = 0.01
"""Of all incidents: those of the rack whose disk stalls."""
STORM_MINUTES = 10
RACKS = 25
KINDS = {
    "mysql97": (0.55, "mysqld", "mysql", OLD_VERSION),
    "mariadb": (0.20, "mariadbd", "mariadb", "10.11.19-MariaDB"),
    "postgres17": (0.15, "postgres", "postgres", "17.10"),
    "postgres": (0.05, "postgres", "postgres", "15.18"),
    "mysql55": (0.05, "mysqld", "mysql", "5.5.9"),
}
"""Share of the hosts, program, server and version."""
SERVICES = ("orders", "stock", "billing", "users", "search", "carts", "audit", "mail")
SILENT_SHARE = 0.004
LOSSY_SHARE, LOST = 0.02, 3
"""Incidents of which captures were lost, and how many."""
WAIT_KINDS = (
    ("mutex", "log_sys->mutex", 31.0, 0.4),
    ("mutex", "lock_sys.latch", 640.0, 0.02),
    ("rwlock", "dict_sys->latch", 80.0, 0.03),
    ("row-lock", "shop.orders", 12.0, 21.0),
    ("metadata-lock", "shop.orders", 0.2, 300.0),
    ("fsync", "redo log", 18_600.0, 1.9),
    ("fdatasync", "binlog", 9_300.0, 2.4),
    ("read", "tablespace", 72_000.0, 0.3),
    ("write", "tablespace", 31_000.0, 0.2),
    ("write", "doublewrite", 4_100.0, 0.4),
)
"""Kind, what is waited for, waits a minute, milliseconds of one."""
HOUR_MS, MINUTE_MS = 3_600_000, 60_000


class Host(NamedTuple):
    """A host with one server. ``switch_ms``: when it gets NEW_VERSION; None: it does not."""

    number: int
    name: str
    kind: str
    program: str
    server: str
    version: str
    boot: str
    pid: int
    rack: int
    started_ms: int
    switch_ms: int | None
    silent_ms: int | None
    """When its agent is seen last; None: it goes on."""

    def version_at(self, time_ms: int) -> str:
        """Return the version of its server."""
        new = self.switch_ms is not None and time_ms >= self.switch_ms
        return NEW_VERSION if new else self.version

    def pid_at(self, time_ms: int) -> int:
        """Return the pid of its server: a new version is a new process."""
        return self.pid + (1000 if self.version_at(time_ms) != self.version else 0)


class Made(NamedTuple):
    """A batch, and the ``(uid, rev)`` of its incidents."""

    batch: Batch
    keys: tuple[tuple[str, int], ...]


class _Stalls:
    """The lines of the stalls of one kind and version, and how often each is chosen."""

    def __init__(self, found: Sequence[tuple[RealIncident, float]]) -> None:
        self.names = [one.name for one, _ in found]
        self.weights = _cumulative([weight for _, weight in found])
        self.lines = [LineTemplate(one.row) for one, _ in found]
        self.lossy = [LineTemplate(_lossy(one.row)) for one, _ in found]

    def of(self, name: str) -> LineTemplate | None:
        """Return the line of one stall."""
        return self.lines[self.names.index(name)] if name in self.names else None


class Fleet:
    """N hosts over some hours, until a moment."""

    def __init__(self, hosts: int, *, seed: int, until_ms: int, hours: float = 24.0) -> None:
        self.seed = seed
        self.until_ms = until_ms
        self.since_ms = until_ms - int(hours * HOUR_MS)
        rng = random.Random(f"{seed} fleet")
        self.hosts = tuple(self._host(number, rng) for number in range(hosts))
        real = load()
        self._stacks = {one.hash: one for incident in real for one in incident.stacks}
        self._stalls = {
            (kind, new): _Stalls(_chosen(real, kind, new))
            for kind in KINDS
            for new in ((False, True) if kind == "mysql97" else (False,))
        }
        self._storm_ms = self.until_ms - (self.until_ms - self.since_ms) // 3
        self._storm = [one for one in self.hosts if one.rack == 7 % min(RACKS, hosts)]

    def _host(self, number: int, rng: random.Random) -> Host:
        kind = rng.choices(list(KINDS), [share for share, *_ in KINDS.values()])[0]
        _, program, server, version = KINDS[kind]
        span = self.until_ms - self.since_ms
        # A tenth of the hosts has the new version at a quarter of the time, all but a tenth at its
        # end.
        switch = self.since_ms + int(span * (0.2 + 0.89 * rng.random() ** 0.6))
        silent = rng.random() < SILENT_SHARE
        return Host(
            number,
            f"{SERVICES[number % len(SERVICES)]}-db-{number:05d}",
            kind,
            program,
            server,
            version,
            hashlib.sha256(f"{self.seed} {number}".encode()).hexdigest()[:32],
            rng.randrange(1000, 30_000),
            number % RACKS,
            self.since_ms - rng.randrange(30 * 24) * HOUR_MS,
            switch if kind == "mysql97" and switch < self.until_ms else None,
            self.until_ms - rng.randrange(20, 300) * MINUTE_MS if silent else None,
        )

    def stacks(self) -> Batch:
        """Return the rows of all stacks."""
        day = day_of(self.since_ms)
        return make(
            msgspec.structs.replace(one, day=day, rev=self.since_ms)
            for one in self._stacks.values()
        )

    def incidents(self, count: int, *, size: int = 2000) -> Iterator[Made]:
        """Yield incidents in the order of time, spread over the hours, ``size`` to a batch."""
        storm = int(count * STORM_SHARE) if self._storm else 0
        storm_at = int((count - storm) * (self._storm_ms - self.since_ms) / self._span)
        step = self._span / max(1, count - storm)
        done = 0
        while done < count:
            rng = random.Random(f"{self.seed} {done}")
            lines, keys = [], []
            for number in range(done, min(count, done + size)):
                if storm_at <= number < storm_at + storm:
                    host = rng.choice(self._storm)
                    start = self._storm_ms + int(rng.random() * STORM_MINUTES * MINUTE_MS)
                    line, key = self._incident(number, host, start, rng, storm=True)
                else:
                    place = number - (storm if number >= storm_at else 0)
                    start = self.since_ms + int((place + rng.random()) * step)
                    host = self._living(int(rng.random() * len(self.hosts)), start)
                    line, key = self._incident(number, host, start, rng)
                lines.append(line)
                keys.append(key)
            done += len(lines)
            yield Made(Batch({"incidents": tuple(lines)}), tuple(keys))

    def incident(self, host: Host, start_ms: int) -> Made:
        """Return one incident of a host, with its stacks: what its agent ships at its end."""
        rng = random.Random(f"{self.seed} {host.number} {start_ms}")
        line, key = self._incident(host.number, host, start_ms, rng)
        hashes = set(msgspec.json.decode(line)["stalled_stack"])
        rows: list[Row] = [
            msgspec.structs.replace(self._stacks[one], day=day_of(start_ms), rev=start_ms)
            for one in sorted(hashes)
        ]
        batch = Batch({"incidents": (line,), **make(rows).lines})
        return Made(batch, (key,))

    def opened(self, made: Made) -> Batch:
        """Return what the agent of ``incident`` has shipped before its end: an earlier revision."""
        row = msgspec.json.decode(made.batch.lines["incidents"][0])
        row |= {"rev": row["start_ms"] + 2000, "is_open": 1, "end_ms": None, "seconds": None}
        return Batch({**made.batch.lines, "incidents": (msgspec.json.encode(row),)})

    def _living(self, number: int, time_ms: int) -> Host:
        """Return this host, or the next one where its agent is silent by then."""
        for place in range(number, number + len(self.hosts)):
            host = self.hosts[place % len(self.hosts)]
            if host.silent_ms is None or time_ms < host.silent_ms:
                return host
        return self.hosts[number]

    @property
    def _span(self) -> int:
        return self.until_ms - self.since_ms

    def _incident(
        self, number: int, host: Host, start_ms: int, rng: random.Random, *, storm: bool = False
    ) -> tuple[bytes, tuple[str, int]]:
        version = host.version_at(start_ms)
        stalls = self._stalls[host.kind, version == NEW_VERSION]
        lines = None
        if storm:
            lines = next((stalls.of(one) for one in STORM_STALLS if stalls.of(one)), None)
        if lines is None:
            known = stalls.lossy if rng.random() < LOSSY_SHARE else stalls.lines
            lines = known[_bisect(stalls.weights, rng.random())]
        seconds = 0.5 + rng.expovariate(1 / 14)
        uid = hashlib.sha256(f"{self.seed} {number} {start_ms}".encode()).hexdigest()[:32]
        rev = 10**15 + start_ms + int(seconds * 1000) + 5000
        one = Sighting(
            day=day_of(start_ms).encode(),
            uid=uid.encode(),
            id=f"{_stamp(start_ms)}-{host.program}-{host.pid_at(start_ms)}".encode(),
            host=host.name.encode(),
            version=version.encode(),
            agent_version=AGENT_VERSION.encode(),
            rev=rev,
            pid=host.pid_at(start_ms),
            start_ms=start_ms,
            seconds=seconds,
            detect_ms=100 + rng.expovariate(1 / 250),
        )
        return lines.line(one, rng), (uid, rev)

    def agents(self, now_ms: int | None = None, hosts: Sequence[Host] | None = None) -> Batch:
        """Return the rows of agents as they are at a moment: of each day and process one."""
        now = self.until_ms if now_ms is None else now_ms
        return make(row for host in hosts or self.hosts for row in self._agent(host, now))

    def heartbeat(self, host: Host, now_ms: int) -> Batch:
        """Return what the agent of a host ships each minute."""
        return make([self.agent_rows(host, now_ms)[-1]])

    def agent_rows(self, host: Host, now_ms: int | None = None) -> list[AgentRow]:
        """Return the rows of one agent, the latest last."""
        return list(self._agent(host, self.until_ms if now_ms is None else now_ms))

    def _agent(self, host: Host, now: int) -> Iterator[AgentRow]:
        last = min(now, now if host.silent_ms is None else host.silent_ms)
        switch = host.switch_ms if host.switch_ms is not None and host.switch_ms < last else None
        bounds = [host.started_ms, *([switch] if switch is not None else []), last]
        for index, begin in enumerate(bounds[:-1]):
            end = bounds[index + 1]
            over = index + 2 < len(bounds)
            for low, high in _days(max(begin, self.since_ms), end):
                yield AgentRow(
                    day=day_of(low),
                    rev=high,
                    host=host.name,
                    program=host.program,
                    pid=host.pid_at(begin),
                    server=host.server,
                    version=host.version_at(begin),
                    agent_version=AGENT_VERSION,
                    boot=host.boot,
                    started_ms=begin,
                    seen_ms=high,
                    watched_s=(high - low) / 1000,
                    every_s=60.0,
                    state="ended" if over else "watching",
                    skew_ms=float(host.number % 41 - 20),
                    waiting=0,
                    dropped=0,
                    why="",
                    captures_lost=host.number % 3,
                )

    def waits(self, minute_ms: int, hosts: Sequence[Host] | None = None) -> Batch:
        """Return the waits of one minute."""
        rng = random.Random(f"{self.seed} waits {minute_ms}")
        return make(
            _wait(host, minute_ms, kind, name, count * rng.uniform(0.5, 1.5), each)
            for host in hosts or self.hosts
            for kind, name, count, each in WAIT_KINDS
        )


def _wait(host: Host, minute: int, kind: str, name: str, count: float, each: float) -> WaitRow:
    return WaitRow(
        day=day_of(minute),
        rev=minute + MINUTE_MS,
        host=host.name,
        program=host.program,
        pid=host.pid_at(minute),
        minute_ms=minute,
        kind=kind,
        name=name,
        count=int(count),
        over=int(count / 1000),
        total_ms=round(count * each, 3),
        max_ms=round(each * 41, 3),
    )


def _chosen(real: Sequence[RealIncident], kind: str, new: bool) -> list[tuple[RealIncident, float]]:
    """Return the stalls of a kind of server; few are frequent, many are rare."""
    found = [one for one in real if one.kind == kind]
    weights = []
    for place, one in enumerate(found):
        weight = 1.0 / (1 + place)
        if one.name == NEW_STALL:
            weight = NEW_STALL_WEIGHT if new else 0.0
        elif new and one.row.signature == REGRESSED:
            weight *= REGRESSION
        weights.append(weight)
    return list(zip(found, weights, strict=True))


def _lossy(row: IncidentRow) -> IncidentRow:
    """Return it with captures that were not taken."""
    why = (f"{LOST} captures were skipped: they came too often",)
    return msgspec.structs.replace(row, lost=LOST, lost_why=why)


def _cumulative(weights: Sequence[float]) -> list[float]:
    total, at, found = sum(weights), 0.0, []
    for one in weights:
        at += one / total
        found.append(at)
    return found


def _bisect(weights: Sequence[float], value: float) -> int:
    for index, bound in enumerate(weights):
        if value < bound:
            return index
    return len(weights) - 1


def _days(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a time by day."""
    day = 24 * HOUR_MS
    while low < high:
        end = min(high, (low // day + 1) * day)
        yield low, end - (1 if end < high else 0)
        low = end


def _stamp(time_ms: int) -> str:
    seconds = time_ms // 1000 % 86400
    clock = f"{seconds // 3600:02d}{seconds // 60 % 60:02d}{seconds % 60:02d}"
    return f"{day_of(time_ms).replace('-', '')}T{clock}.{time_ms % 1000:03d}Z"

# SPDX-License-Identifier: Apache-2.0
"""How many commits a second a server makes: its clients, CPUs and syncs as queues.

A client works for a while (statements, its own program, the network), needs a CPU for a part of
that, and then goes through the syncs of its commit. A sync that serves all who wait for it (group
commit) is a queue that takes all of them at once; one that serves each alone takes them one by
one. Formulas for such queues do not exist for the shapes that servers have, so the model is run:
a simulation of events, with the same random numbers for the same input. Everything that was not
measured alone (thinking clients, locks, the network) is one number, the delay: it is what makes
the model give the measured rate at the measured setting.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections import deque

import msgspec

__all__ = ["Load", "Rates", "Station", "delay_of", "run", "scale_of", "scaled"]

_MASK = (1 << 64) - 1
_ROUNDS = 40
"""Commits of each client that are simulated, at least; a quarter more is not counted."""
_LEAST = 1600
_MOST = 12_000
_MAX_CLIENTS = 300
_STEPS = 10
_SCALES = (0.25, 16.0)
_NEAR = 0.02
"""A measured rate is as exact as this, at best."""


class Station(msgspec.Struct, frozen=True):
    """One kind of sync."""

    name: str
    seconds: float
    deviation: float = 0.0
    """Standard deviation of the seconds."""
    group: bool = True
    """One sync serves all that wait; False: each has its own."""
    held_by: str = ""
    """It ends only while the station of this name is idle: a file system that lets nobody write to
    a file during its sync."""


class Load(msgspec.Struct, frozen=True):
    """What clients do between two commits, and by which syncs a commit goes."""

    clients: int
    cpu: float
    """Seconds of CPU a commit takes, of all programs that share the server's CPUs."""
    cpus: int
    delay: float
    """Seconds of everything else, in which no CPU is needed."""
    path: tuple[Station, ...]
    """In the order in which a commit goes through them; a station may be there twice."""
    together: bool = True
    """Those that one sync has served go on as one group; False: each as soon as it runs."""


class Rates(msgspec.Struct, frozen=True):
    """What the model says."""

    commits: float
    """Per second."""
    syncs: dict[str, float]
    """Per commit, by the name of the station."""


class _Queue:
    """The state of one station."""

    __slots__ = ("busy", "done", "held", "station", "waiting")

    def __init__(self, station: Station) -> None:
        self.station = station
        self.waiting: deque[int] = deque()
        self.busy = False
        self.done = 0
        self.held: tuple[int, ...] = ()
        """Clients whose sync is over, and that another station holds."""


class _Random:
    """The same numbers each time: analyzers have no other source of chance."""

    def __init__(self) -> None:
        self._state = 1

    def uniform(self, low: float, high: float) -> float:
        # Knuth's MMIX generator; its upper bits are the good ones.
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return low + (high - low) * (self._state >> 11) / (1 << 53)

    def expovariate(self) -> float:
        """Return a number that is 1 on average."""
        return -math.log(1.0 - self.uniform(0.0, 1.0))


class _Simulation:
    def __init__(self, load: Load) -> None:
        self.load = load
        self.random = _Random()
        self.now = 0.0
        self.events: list[tuple[float, int, int, tuple[int, ...]]] = []
        self.number = 0
        self.free = load.cpus
        self.ready: deque[int] = deque()
        by_name = {station.name: _Queue(station) for station in load.path}
        self.path = [by_name[station.name] for station in load.path]
        self.queues = list(by_name.values())
        self.number_of = {queue.station.name: nr for nr, queue in enumerate(self.queues)}
        self.at = [0] * load.clients
        self.commits = 0

    def later(self, seconds: float, queue: int, who: tuple[int, ...]) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, queue, who))

    def begin(self, client: int) -> None:
        if self.load.delay > 0:
            # Half of it fixed: neither all in step nor without any memory.
            fixed = 0.5 * self.load.delay
            self.later(fixed + self.random.expovariate() * fixed, -2, (client,))
        else:
            self.wants_cpu(client)

    def wants_cpu(self, client: int) -> None:
        if self.load.cpu <= 0:
            self.next_station(client)
        elif self.free:
            self.free -= 1
            self.work(client)
        else:
            self.ready.append(client)

    def work(self, client: int) -> None:
        self.later(self.load.cpu * self.random.uniform(0.5, 1.5), -1, (client,))

    def next_station(self, client: int) -> None:
        queue = self.arrive(client)
        if queue is not None and not queue.busy:
            self.serve(queue)

    def arrive(self, client: int) -> _Queue | None:
        """Let a client wait at its next station and return that; None: its commit is done."""
        step = self.at[client]
        if step == len(self.path):
            self.at[client] = 0
            self.commits += 1
            self.begin(client)
            return None
        self.at[client] = step + 1
        queue = self.path[step]
        queue.waiting.append(client)
        return queue

    def serve(self, queue: _Queue) -> None:
        station = queue.station
        if station.group:
            who = tuple(queue.waiting)
            queue.waiting.clear()
        else:
            who = (queue.waiting.popleft(),)
        queue.busy = True
        spread = min(station.deviation, 0.5 * station.seconds)
        length = station.seconds
        if spread > 0:
            length += spread * self.random.uniform(-1.7, 1.7)
        self.later(length, self.number_of[station.name], who)

    def step(self) -> None:
        self.now, _, kind, who = heapq.heappop(self.events)
        if kind == -2:
            self.wants_cpu(who[0])
        elif kind == -1:
            if self.ready:
                self.work(self.ready.popleft())
            else:
                self.free += 1
            self.next_station(who[0])
        else:
            self.synced(self.queues[kind], who)

    def synced(self, queue: _Queue, who: tuple[int, ...]) -> None:
        holder = self.number_of.get(queue.station.held_by)
        if holder is not None and self.queues[holder].busy:
            queue.held = who
            return
        queue.busy = False
        queue.done += 1
        # Those that wait are served before those that are just leaving and may come again.
        if queue.waiting:
            self.serve(queue)
        if self.load.together:
            for reached in {self.arrive(client) for client in who}:
                if reached is not None and not reached.busy:
                    self.serve(reached)
        else:
            for client in who:
                self.next_station(client)
        for other in self.queues:
            if other.held and other.station.held_by == queue.station.name and not queue.busy:
                held, other.held = other.held, ()
                self.synced(other, held)


@functools.lru_cache(maxsize=1024)
def run(load: Load) -> Rates:
    """Return the model's rates. No CPU, no delay and no syncs at all is an infinite rate."""
    clients = max(1, min(load.clients, _MAX_CLIENTS))
    scale = load.clients / clients
    # More clients than are simulated: each stands for several.
    cut = msgspec.structs.replace(load, clients=clients, cpu=load.cpu * scale)
    if load.cpu <= 0 and load.delay <= 0 and not load.path:
        return Rates(math.inf, {})
    simulation = _Simulation(cut)
    for client in range(clients):
        simulation.begin(client)
    total = max(_LEAST, min(_MOST, clients * _ROUNDS))
    warm = total // 4
    while simulation.commits < warm:
        simulation.step()
    began, first = simulation.now, simulation.commits
    before = [queue.done for queue in simulation.queues]
    while simulation.commits < first + total:
        simulation.step()
    seconds = simulation.now - began
    done = simulation.commits - first
    syncs = {
        queue.station.name: (queue.done - old) / done / scale
        for queue, old in zip(simulation.queues, before, strict=True)
    }
    return Rates(math.inf if seconds <= 0 else scale * done / seconds, syncs)


def delay_of(load: Load, commits: float) -> float:
    """Return the least delay with which the model gives no more than the measured rate."""
    wanted = commits * (1 + _NEAR)
    if run(msgspec.structs.replace(load, delay=load.delay)).commits <= wanted:
        return load.delay
    low, high = load.delay, load.clients / commits
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if run(msgspec.structs.replace(load, delay=middle)).commits > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def scale_of(load: Load, commits: float) -> float:
    """Return by what to multiply the time at all stations so that the model gives the measured
    rate."""
    low, high = _SCALES
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        if run(scaled(load, middle)).commits > commits:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def scaled(load: Load, scale: float) -> Load:
    """Return the same with longer times at all stations."""
    path = tuple(
        msgspec.structs.replace(one, seconds=one.seconds * scale, deviation=one.deviation * scale)
        for one in load.path
    )
    return msgspec.structs.replace(load, path=path)

# SPDX-License-Identifier: Apache-2.0
"""Thousands of agents with one incident each within a minute, while what they need is killed."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.fleet.batch import dumps
from stallscope.fleet.shipping.sender import Pace
from stallscope.fleet.tables import AgentRow
from tests.bench import progress
from tests.bench.fleet_agents import Agent, State, Work
from tests.bench.fleet_options import Options
from tests.bench.fleet_places import ClusterPlace, Compared, Place, compared
from tests.bench.stats import BenchError, Row, Section
from tests.support.fleet.simulated import Fleet, Host

__all__ = ["Outcome", "minute", "section"]

IN_PROCESS = 250
"""Agents of one process."""
OPEN_S = 4.0
"""From the first revision of an incident to the last."""
KILLED = 2
"""Processes of agents that are killed."""
PATIENCE_S = 900.0
LEAST_FREE_S = 0.3


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    compared: Compared
    seconds: float
    """From the start until the last agent's spool was empty."""
    window: float
    failures: int
    """Attempts that failed and were repeated."""
    dropped: int
    killed: int
    """Agents whose process was killed."""
    shard_down_s: float
    cpu_ms: float
    """Of the threads of an agent that send, on average."""
    heartbeats: int


class _Process:
    """One process with agents."""

    def __init__(self, folder: Path, work: Work) -> None:
        folder.mkdir()
        self._file = folder / "work.msgpack"
        self._file.write_bytes(msgspec.msgpack.encode(work))
        self._folder = folder
        self.agents = len(work.agents)
        self.batches = sum(len(agent.due) for agent in work.agents)
        self.state = State(0, 0, 0, 0, 0, 0.0, "")
        self.failures = 0
        """Of killed runs."""
        self.start()

    def start(self) -> None:
        """Begin, or go on after a kill."""
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.bench.fleet_agents", str(self._file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(msgspec.MsgspecError):  # cut by a kill
                self.state = msgspec.json.decode(line, type=State)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()
        self.failures += self.state.failures
        self.state = State(0, 1, 0, 0, 0, 0.0, "")  # not over until it says so

    @property
    def done(self) -> bool:
        """Return whether all is spooled and sent. Raises: BenchError where it ended by itself."""
        if self.process.poll() is not None:
            log = (self._folder / "log").read_text(errors="replace").strip()
            raise BenchError(f"a process of agents ended: {log[-400:]}")
        return self.state.spooled >= self.batches and self.state.waiting == 0

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def minute(place: Place, options: Options, work: Path) -> Outcome:
    """Run it into one place. ``work``: a folder for spools, which must be on a disk."""
    now_ms = time.time_ns() // 1_000_000
    fleet = Fleet(options.agents, seed=options.seed, until_ms=now_ms)
    window = options.window
    start_ns = time.time_ns() + int(_start_up(options) * 1e9)
    agents, keys = _agents(fleet, start_ns, window, options.seed)
    work.mkdir()
    processes: list[_Process] = []
    try:
        for number, first in enumerate(range(0, len(agents), IN_PROCESS)):
            folder = work / f"p{number:03d}"
            part = agents[first : first + IN_PROCESS]
            pace = options.pace or Pace()
            processes.append(_Process(folder, Work(str(folder), place.url, start_ns, part, pace)))
        killed, down = _course(place, processes, start_ns, window)
        seconds = (time.time_ns() - start_ns) / 1e9
        states = [one.state for one in processes]
        failures = sum(one.failures for one in processes) + sum(s.failures for s in states)
    finally:
        for one in processes:
            one.close()
    progress(f"minute: comparing what {place.name} has")
    return Outcome(
        compared(place, keys),
        seconds,
        window,
        failures,
        sum(state.dropped for state in states),
        killed,
        down,
        1000 * sum(state.cpu_seconds for state in states) / len(agents),
        max(0, sum(state.sent for state in states)),
    )


def _start_up(options: Options) -> float:
    """Return seconds in which all processes are there."""
    return 1.0 + math.ceil(options.agents / IN_PROCESS) * 0.8


def _agents(
    fleet: Fleet, start_ns: int, window: float, seed: int
) -> tuple[tuple[Agent, ...], dict[str, int]]:
    """Return all agents with what they will ship, and the revisions that count in the end."""
    rng = random.Random(f"{seed} minute")
    found: list[Agent] = []
    keys: dict[str, int] = {}
    for host in fleet.hosts:
        ended_s = OPEN_S + rng.random() * (window - OPEN_S)
        made = fleet.incident(host, start_ns // 1_000_000 + int((ended_s - OPEN_S) * 1000))
        due = ((ended_s - OPEN_S, dumps(fleet.opened(made))), (ended_s, dumps(made.batch)))
        keys.update(made.keys)
        found.append(Agent(host.name, due, _beat(fleet, host)))
    return tuple(found), keys


def _beat(fleet: Fleet, host: Host) -> AgentRow:
    return fleet.agent_rows(host)[-1]


def _course(
    place: Place, processes: Sequence[_Process], start_ns: int, window: float
) -> tuple[int, float]:
    """Kill and restart by the clock, until all is shipped. Return how many agents were killed, and
    for how long a shard was away."""
    victims = processes[:KILLED] if len(processes) > KILLED else processes[:1]
    cluster = place.cluster if isinstance(place, ClusterPlace) else None
    away = [0.0, 0.0]

    def kill_agents() -> None:
        for one in victims:
            one.kill()

    def start_agents() -> None:
        for one in victims:
            one.start()

    def kill_shard() -> None:
        assert cluster is not None
        away[0] = time.monotonic()
        cluster.kill_shard(1)

    def start_shard() -> None:
        assert cluster is not None
        cluster.start_shard(1)
        cluster.wait_writable()
        away[1] = time.monotonic()

    steps: list[tuple[float, Callable[[], None]]] = [
        (0.3 * window, kill_agents),
        (0.4 * window, start_agents),
    ]
    if cluster is not None:
        steps += [(0.45 * window, kill_shard), (0.65 * window, start_shard)]
    for elapsed in _ticks(start_ns):
        while steps and steps[0][0] <= elapsed:
            steps.pop(0)[1]()
        spooled = sum(one.state.spooled for one in processes)
        waiting = sum(one.state.waiting for one in processes)
        progress(f"minute, {place.name}: {elapsed:.0f} s, {spooled} spooled, {waiting} wait")
        if not steps and elapsed >= window and all(one.done for one in processes):
            return sum(one.agents for one in victims), away[1] - away[0]
        if elapsed > window + PATIENCE_S:
            why = next((one.state.why for one in processes if one.state.why), "no error")
            raise BenchError(f"{waiting} batches still wait for {place.name}: {why}")
    raise AssertionError


def _ticks(start_ns: int) -> Iterator[float]:
    """Yield the seconds since the start, some times a second."""
    while True:
        yield (time.time_ns() - start_ns) / 1e9
        time.sleep(LEAST_FREE_S)


def section(outcomes: Sequence[tuple[str, Outcome]], options: Options) -> Section:
    """Return the table."""
    rows = []
    for name, one in outcomes:
        found = one.compared
        rows.append(
            Row(
                name,
                {
                    "incidents": str(found.shipped),
                    "lost": str(found.lost),
                    "doubled": str(found.doubled),
                    "of an older revision": str(found.old),
                    "all there after": f"{one.seconds:.0f} s",
                    "attempts repeated": str(one.failures),
                    "agents killed": str(one.killed),
                    "shard away": f"{one.shard_down_s:.0f} s" if one.shard_down_s else "-",
                    "CPU of an agent's sending": f"{one.cpu_ms:.1f} ms",
                },
            )
        )
    good = all(one.compared.good and not one.dropped for _, one in outcomes)
    return Section(
        "minute",
        f"{options.agents} agents, an incident each within {options.window:g} s",
        tuple(rows),
        checks=(
            "ids and revisions of all incidents were compared with what was shipped",
            f"each agent has its own spool, thread, connection and heartbeats; {IN_PROCESS} agents"
            " share a process",
            "each incident was shipped twice: when it was named, and at its end",
        ),
        goals=(("nothing lost, nothing doubled, the last revision counts", good),),
        notes=(f"seed {options.seed}",),
    )

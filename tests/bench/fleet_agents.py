# SPDX-License-Identifier: Apache-2.0
"""A process with the shipping of many agents: ``python -m tests.bench.fleet_agents FILE``.

Each agent is the real thing from its spool on: a folder of its own, a thread that sends, a
connection of its own, jitter, retries, and heartbeats. What is not there is the server that it
watches: its incident is in FILE, with the moment at which it is there. After SIGKILL the same
command goes on, as an agent does whose incident is in its store: what was not noted as spooled is
spooled again.

Prints a line of JSON each half second, until standard input ends.
"""

from __future__ import annotations

import heapq
import os
import resource
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallscope.fleet.address import parse
from stallscope.fleet.batch import loads
from stallscope.fleet.engines import opening
from stallscope.fleet.shipping.sender import Numbers, Pace, Sender
from stallscope.fleet.shipping.spool import Spool, put_all
from stallscope.fleet.tables import AgentRow

__all__ = ["Agent", "State", "Work", "main"]

SPOOL_BYTES = 64 << 20
EVERY_S = 0.5


class Agent(msgspec.Struct, frozen=True):
    """One agent. ``due``: seconds after the start, with the batch's file that is there then."""

    host: str
    due: tuple[tuple[float, bytes], ...]
    beat: AgentRow


class Work(msgspec.Struct, frozen=True):
    """What one process does. ``start_ns``: by the wall clock."""

    folder: str
    url: str
    start_ns: int
    agents: tuple[Agent, ...]
    pace: Pace = Pace()


class State(msgspec.Struct, frozen=True):
    """How it is now. ``spooled``: batches since the start, those of killed runs too."""

    spooled: int
    waiting: int
    sent: int
    failures: int
    dropped: int
    cpu_seconds: float
    """Of the threads that send, in this run."""
    why: str


def main(path: str) -> int:
    """Do the work until standard input ends."""
    work = msgspec.msgpack.decode(Path(path).read_bytes(), type=Work)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    folder = Path(work.folder)
    noted = folder / "spooled"
    done = set(noted.read_text().split()) if noted.exists() else set()
    senders = [_sender(number, work, folder) for number in range(len(work.agents))]
    due = [
        (when, number, place)
        for number, agent in enumerate(work.agents)
        for place, (when, _) in enumerate(agent.due)
        if f"{number}:{place}" not in done
    ]
    heapq.heapify(due)
    for sender in senders:
        sender.start()
    with noted.open("a", buffering=1) as notes:
        while True:
            elapsed = (time.time_ns() - work.start_ns) / 1e9
            until = time.monotonic() + EVERY_S
            while due and due[0][0] <= elapsed and time.monotonic() < until:
                _, number, place = heapq.heappop(due)
                batch = loads(work.agents[number].due[place][1])
                if put_all(_folder(folder, number), [senders[number].spool], batch):
                    notes.write(f"{number}:{place}\n")
                    done.add(f"{number}:{place}")
                senders[number].wake()
            _say(senders, len(done))
            wait = until - time.monotonic()
            if due:
                wait = min(wait, due[0][0] - elapsed)
            if select.select([0], [], [], max(0.0, wait))[0] and not os.read(0, 64):
                return 0


def _folder(folder: Path, number: int) -> Path:
    return folder / f"agent-{number:05d}"


def _sender(number: int, work: Work, folder: Path) -> Sender:
    own = _folder(folder, number)
    own.mkdir(parents=True, exist_ok=True)
    spool = Spool(own / "engine", SPOOL_BYTES)
    return Sender(
        opening.destination(parse(work.url)), spool, work.pace, _beats(work.agents[number])
    )


def _beats(agent: Agent) -> Callable[[Numbers], Sequence[AgentRow]]:
    def beats(numbers: Numbers) -> list[AgentRow]:
        now = time.time_ns() // 1_000_000
        return [msgspec.structs.replace(agent.beat, rev=now, seen_ms=now, waiting=numbers.waiting)]

    return beats


def _say(senders: Sequence[Sender], spooled: int) -> None:
    numbers = [sender.numbers() for sender in senders]
    state = State(
        spooled=spooled,
        waiting=sum(one.waiting for one in numbers),
        sent=sum(one.sent for one in numbers),
        failures=sum(one.failures for one in numbers),
        dropped=sum(one.dropped for one in numbers),
        cpu_seconds=sum(one.cpu_seconds for one in numbers),
        why=next((one.why for one in numbers if one.why), ""),
    )
    sys.stdout.buffer.write(msgspec.json.encode(state) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

# SPDX-License-Identifier: Apache-2.0
"""The agent on a server for hours: connections come and go, stalls are made at intervals."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from tests.bench.footprint import Bounds, Footprint, footprint, growth_goals, milestones
from tests.bench.soak import say
from tests.bench.stats import BenchError, Row, Section
from tests.support.agents import AgentProcess, agent
from tests.support.servers import Late, MariaDB, SqlServer
from tests.support.servers.sql import Connection
from tests.support.stalls import global_read_lock, metadata_lock_pileup, row_lock_convoy
from tests.support.stalls.load import sysbench_load
from tests.support.targets import trouble
from tests.support.usage import children, threads_cpu_ns

__all__ = ["AGENT_MINUTES", "agent_section"]

AGENT_MINUTES = 120.0
SAMPLE_SECONDS = 60.0
STALL_SECONDS = 360.0
"""From stall to stall: a trigger that fired sleeps for 300 s."""
FIRST_STALL_SECONDS = 60.0
NOTICE_SECONDS = 90.0
"""In which the agent has reported a stall."""
HOLD_SECONDS = 3.0
COMERS = 2
"""Clients that connect, ask one thing, and go."""
PAUSE = 0.1
LOAD = ("--rate=15",)
LOAD_THREADS = 4
NO_THREAD_CACHE = "--thread-cache-size=0"
RETENTION = 8
"""Incidents that the store may keep: more stalls than that show whether its size is bounded."""
TRIGGERS = f"retention-count = {RETENTION}\n"
STALLS: dict[str, Callable[[SqlServer], AbstractContextManager[object]]] = {
    "metadata lock": metadata_lock_pileup,
    "row lock": row_lock_convoy,
    "global read lock": global_read_lock,
}


@dataclass
class Life:
    """What was done to the server, and what was seen of the agent."""

    server: SqlServer
    watch: AgentProcess
    store: Path
    over: threading.Event
    samples: list[dict[str, Footprint]] = field(default_factory=list)
    disk_kb: list[int] = field(default_factory=list)
    cpu: list[dict[str, int]] = field(default_factory=list)
    when: list[float] = field(default_factory=list)
    made: int = 0
    noticed: int = 0
    named: int = 0
    came: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)

    def sample(self) -> None:
        if self.watch.process.poll() is not None:
            raise BenchError(f"the agent ended: {self.watch.said[-3:]}")
        roles = roles_of(self.watch)
        self.samples.append({role: footprint(pids) for role, pids in roles.items()})
        self.cpu.append({role: sum(map(threads_cpu_ns, pids)) for role, pids in roles.items()})
        self.disk_kb.append(disk_kb(self.store))
        self.when.append(time.monotonic())
        usage = "; ".join(f"{role}: {held}" for role, held in self.samples[-1].items())
        say(
            f"{usage}; store {self.disk_kb[-1]} KiB; {self.came} connections came and went;"
            f" stalls {self.made} made, {self.noticed} noticed, {self.named} named"
        )


def roles_of(watch: AgentProcess) -> dict[str, list[int]]:
    """Return the pids of the agent, of its probe, and of the probe's workers."""
    probes = [pid for pid in children(watch.pid) if comm(pid).startswith("stallscope-prob")]
    workers = [child for pid in probes for child in children(pid)]
    return {"agent": [watch.pid], "probe": probes, "workers": workers}


def comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def disk_kb(folder: Path) -> int:
    """Return the blocks of all files of a folder, in KiB."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_blocks
    return total // 2


def agent_section(minutes: float) -> Section:
    """Let the agent watch a server for a while, and see what it holds."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())  # in order, with its table
    with (
        MariaDB(NO_THREAD_CACHE) as server,
        tempfile.TemporaryDirectory(prefix="stallscope-soak-") as folder,
        sysbench_load(server, LOAD_THREADS, "oltp_read_write", *LOAD),
    ):
        triggers = Path(folder) / "triggers.toml"
        triggers.write_text(TRIGGERS)
        store = Path(folder) / "store"
        with agent(server, store, "--triggers", triggers) as watch:
            life = Life(server, watch, store, over)
            with comers(life):
                live(life, minutes)
            incidents = {incident["id"] for incident in watch.of("stall")}
            errors = [line for line in watch.said if "ready to capture" not in line]
    return section(life, minutes, len(incidents), errors)


def live(life: Life, minutes: float) -> None:
    begun = time.monotonic()
    end = begun + 60 * minutes
    next_sample, next_stall = begun, begun + FIRST_STALL_SECONDS
    stalls = 0
    while time.monotonic() < end and not life.over.is_set():
        now = time.monotonic()
        if now >= next_sample:
            life.sample()
            next_sample += SAMPLE_SECONDS
        # The last one is over before the end.
        if now >= next_stall and now + NOTICE_SECONDS < end:
            name = list(STALLS)[stalls % len(STALLS)]
            stall(life, name)
            stalls += 1
            next_stall += STALL_SECONDS
        life.over.wait(max(0.0, min(next_sample, next_stall, end) - time.monotonic()))
    life.sample()
    if left := trouble(life.server.pid):
        raise BenchError(f"left behind in the server: {left[:3]}")
    if not life.server.answers():
        raise BenchError("the server does not answer at the end")


def stall(life: Life, name: str) -> None:
    """Make one, and wait until the agent has reported it."""
    before = {incident["id"] for incident in life.watch.of("stall")}
    named = False
    try:
        with STALLS[name](life.server):
            life.made += 1
            until = time.monotonic() + NOTICE_SECONDS
            found: list[dict[str, object]] = []
            while time.monotonic() < until:
                found = [i for i in life.watch.of("stall") if i["id"] not in before]
                if named := any(incident.get("verdict") for incident in found):
                    break
                time.sleep(0.5)
            life.over.wait(HOLD_SECONDS)
    except (Late, pymysql.err.Error) as error:
        life.errors.append(f"{name}: {error}")
        return
    life.noticed += bool(found)
    life.named += named
    verdicts = [i["verdict"]["signature"] for i in found if i.get("verdict")]  # type: ignore[index]
    say(f"stall {name}: {len(found)} reported, {verdicts or 'not named'}")


@contextmanager
def comers(life: Life) -> Iterator[None]:
    """Let clients come and go during the block."""
    over = threading.Event()
    threads = [threading.Thread(target=come_and_go, args=(life, over)) for _ in range(COMERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def come_and_go(life: Life, over: threading.Event) -> None:
    while not over.wait(PAUSE):
        try:
            with closing(life.server.connect("sbtest")) as connection:
                ask(connection)
            life.came += 1
        except pymysql.err.Error as error:
            life.refused += 1
            if life.refused <= 3:
                life.errors.append(f"a client: {error}")


def ask(connection: Connection[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT c FROM sbtest1 WHERE id = 1")
        cursor.fetchall()


def section(life: Life, minutes: float, incidents: int, said: list[str]) -> Section:
    rows = []
    names = ("start", "a quarter", "half", "three quarters", "end")
    for name, index in zip(names, milestones(life.samples), strict=True):
        cells = {role: str(held) for role, held in life.samples[index].items()}
        cells["store"] = f"{life.disk_kb[index] / 1024:.1f} MiB"
        rows.append(Row(name, {**cells, "minute": f"{(life.when[index] - life.when[0]) / 60:.0f}"}))
    seconds = life.when[-1] - life.when[1]
    shares = {
        role: (life.cpu[-1][role] - life.cpu[1][role]) / seconds / 1e7 for role in life.cpu[0]
    }
    goals = growth_goals(life.samples, Bounds())
    goals += [
        (f"{life.noticed} of {life.made} stalls reported", life.noticed == life.made > 0),
        (f"{life.refused} clients refused or cut off", life.refused == 0),
    ]
    return Section(
        "agent",
        f"{minutes:g} minutes of stallscope watch: {life.came} connections came and went,"
        f" {life.made} stalls",
        tuple(rows),
        checks=("no thread of the server is left stopped, and it answers",),
        goals=tuple(goals),
        notes=(
            "CPU of one: " + ", ".join(f"{role} {share:.2f} %" for role, share in shares.items()),
            f"{incidents} incidents of {life.made} stalls, {life.named} named while they lasted;"
            f" the store keeps {RETENTION}",
            *life.errors,
            *(f"the agent said: {line}" for line in said[:10]),
        ),
    )

# SPDX-License-Identifier: Apache-2.0
"""SIGKILL to one process of a poke, at a random moment: is the value there again in time?"""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe, processes
from stallscope.collectors.poke import allowlist, looking, poking, records
from stallscope.model.pokes import Plan, Stored
from tests.bench import progress
from tests.bench.stats import BenchError, Row, Section, figure
from tests.support.servers import PATIENCE, MySQL55, SqlServer, wait_until

__all__ = ["kills"]

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "linear-read-ahead"
ADDRESS = 0xF6E2C8
POKE_SECONDS = 0.5
LATE_MS = 1000.0
"""The longest from the deadline to the undo: the CPUs are busy with three servers and commands."""
SERVERS = 4
"""At once."""
WHOLE = 10
"""One round in so many starts the whole command, the others what it starts when its record is on
disk: the time before that needs no undo."""
EARLY = 0.03
"""Seconds in which the program starts its supervisors and writes."""
QUIET = 5
"""Checks in a row, 0.1 s apart, that find no process."""


class Round(msgspec.Struct, frozen=True):
    """What one kill did."""

    killed: str
    was_set: bool
    late_ms: float | None
    """From the deadline to the undo."""
    by_hand: bool
    """The command was killed before its supervisors were there: its record stays, and nothing was
    written."""


def kills(folder: Path, count: int) -> Section:
    """Kill as often as that; half of the moments are in the time that the poke is set."""
    seed = random.SystemRandom().randrange(1 << 32)
    rounds: list[Round] = []
    with ExitStack() as stack, ThreadPoolExecutor(SERVERS) as pool:
        servers = [stack.enter_context(MySQL55()) for _ in range(SERVERS)]
        jobs = []
        for number, server in enumerate(servers):
            share = count // SERVERS + (number < count % SERVERS)
            chance = random.Random(seed + number)
            jobs.append(
                pool.submit(_many, server, folder / f"kills-{number}", share, chance, rounds)
            )
        for job in jobs:
            job.result()
        answer = all(server.answers() for server in servers)
    return _section(rounds, count, seed, answer)


def _section(rounds: list[Round], count: int, seed: int, answer: bool) -> Section:
    by = Counter(one.killed for one in rounds)
    rows = []
    for killed in sorted(by):
        these = [one for one in rounds if one.killed == killed]
        late = [one.late_ms for one in these if one.late_ms is not None]
        cells = {
            "kills": str(len(these)),
            "value had been set": str(sum(one.was_set for one in these)),
            "restored": str(len(these)),
            "undo after the deadline": figure(late, "ms") if late else "-",
        }
        rows.append(Row(killed, cells))
    latest = max((one.late_ms or 0.0 for one in rounds), default=0.0)
    return Section(
        "kills",
        f"SIGKILL to one process of a poke with --for {POKE_SECONDS:g}, at {count} random moments",
        tuple(rows),
        checks=(
            f"seed {seed}",
            "the word in memory was read after each, and has its old value: else this fails",
        ),
        goals=(
            (f"the value is restored after all {count}", len(rounds) == count),
            (f"each undo is at most {LATE_MS:g} ms late", latest <= LATE_MS),
            ("the servers answer", answer),
        ),
        notes=(
            f"{sum(one.by_hand for one in rounds)} commands were killed before their supervisors"
            " were ready: nothing was written, and the record waits for --undo",
        ),
    )


def _many(
    server: SqlServer, folder: Path, count: int, chance: random.Random, rounds: list[Round]
) -> None:
    allowed = allowlist.load()
    plan = poking.word_plan(allowed, NAME, looking.look(server.pid, allowed), None)
    for number in range(count):
        progress(f"poke: {len(rounds)} kills")
        rounds.append(_once(plan, folder / str(number), chance, whole=number % WHOLE == 0))


def _value(pid: int) -> int:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(ADDRESS)
        (value,) = struct.unpack("<Q", memory.read(8))
        return int(value)


def _started(plan: Plan, folder: Path, *, whole: bool) -> subprocess.Popen[bytes]:
    """Start the whole command, or what it starts when its record is on disk."""
    if whole:
        words = [
            *(sys.executable, "-P", "-m", "stallscope", "poke", NAME, "-p", str(plan.looked.pid)),
            *("--for", str(POKE_SECONDS), "--yes", "--records", str(folder)),
        ]
    else:
        words = [str(probe.find(probe.POKE)), *poking.prepared(plan, folder, POKE_SECONDS)[2]]
    return subprocess.Popen(
        words,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _once(plan: Plan, folder: Path, chance: random.Random, *, whole: bool) -> Round:
    pid = plan.looked.pid
    watcher = _Watcher(pid)
    command = _started(plan, folder, whole=whole)
    try:
        if whole:
            wait_until(
                lambda: command.poll() is not None or bool(_records(folder)), "there is a record"
            )
        # Half of the moments are where supervisors start and the word is written.
        time.sleep(chance.random() * (EARLY if chance.random() < 0.5 else POKE_SECONDS * 1.1))
        killed = _kill_one(command, folder, chance)
        command.wait(PATIENCE)
        _wait_quiet(folder)
    finally:
        was_set = watcher.stop()
    return _judged(pid, folder, killed, was_set)


def _wait_quiet(folder: Path) -> None:
    """Return when the record is over, or when nothing of the poke has run for a while."""
    quiet = 0
    while quiet < QUIET:
        if all(stored.end is not None for stored in _records(folder)) and not _running(folder):
            return
        quiet = 0 if _running(folder) else quiet + 1
        time.sleep(0.1)


def _running(folder: Path) -> bool:
    """Return whether a process of the poke runs: supervisors have the command line of the
    program that they come from, which can outlive its command."""
    name = os.fsencode(folder) + b"/"
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if name in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return True
    return False


class _Watcher:
    """Says whether the word had another value at any time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._end = threading.Event()
        self._was_set = False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(0.02):
            self._was_set |= _value(self._pid) != 0

    def stop(self) -> bool:
        self._end.set()
        self._thread.join()
        return self._was_set


def _records(folder: Path) -> list[Stored]:
    with suppress(StallscopeError):
        return records.listed(folder)[0]
    return []


def _supervisors(folder: Path) -> list[int]:
    """Return those that run."""
    found = []
    for stored in _records(folder):
        for event in stored.events:
            process = processes.read(event.pid) if event.event == "supervised" else None
            if (
                process is not None
                and process.state not in "ZX"
                and process.start_time == event.start_time
            ):
                found.append(event.pid)
    return found


def _kill_one(command: subprocess.Popen[bytes], folder: Path, chance: random.Random) -> str:
    """Kill one of the processes that there are now; return what it was."""
    living: list[tuple[str, int]] = [("supervisor", pid) for pid in _supervisors(folder)]
    if command.poll() is None:
        is_program = Path(str(command.args[0])).name == probe.POKE  # type: ignore[index]
        living.append((probe.POKE if is_program else "command", command.pid))
        with suppress(OSError):
            children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text()
            living += [(probe.POKE, int(word)) for word in children.split()]
    if not living:
        return "none: it was over"
    name, pid = chance.choice(living)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return name


def _judged(pid: int, folder: Path, killed: str, was_set: bool) -> Round:
    found = _records(folder)
    late = None
    by_hand = False
    for stored in found:
        first = next((e.at_ns for e in stored.events if e.event == "supervised"), None)
        undone = stored.last("undone")
        if undone is not None and undone.by == "supervisor" and first is not None:
            late = (undone.at_ns - first) / 1e6 - POKE_SECONDS * 1000
        if stored.end is None:
            by_hand = True
            if was_set or first is not None:
                raise BenchError(f"poke {stored.record.id} was left: {stored.events}")
            poking.undo(stored.record.id, folder)
    if _value(pid) != 0:
        raise BenchError(f"the value was not restored after the kill of {killed}: {found}")
    return Round(killed, was_set, late, by_hand)

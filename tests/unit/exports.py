# SPDX-License-Identifier: Apache-2.0
"""What the tests of the exported formats share: captures of all sorts, and running readers."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Group
from stallscope.model.capture import Capture, Frame, Lock, LockKind, Process, Thread
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry, Verdict
from stallscope.model.samples import Sample
from stallscope.model.waitlines import Event, KindWaits, Target, WaitLine
from stallscope.reporters.counts import count_threads
from stallscope.reporters.export.source import Entry, History
from tests.support.servers import PATIENCE
from tests.unit import gdb_dumps
from tests.unit.captures import convoy

__all__ = [
    "SECOND",
    "counted",
    "dumps",
    "entry",
    "history",
    "hostile",
    "pprof_program",
    "raw",
    "run",
    "series",
    "total",
]

SECOND = 1_000_000_000


@functools.cache
def signatures() -> catalog.Catalog:
    return catalog.load()


def entry(capture: Capture, name: str = "a.jsonl", incident: str | None = None) -> Entry:
    return Entry(name, engine.analyze(capture, signatures()), incident)


def series(count: int = 3) -> list[Entry]:
    """Captures of one server, a second apart, each with one waiter more."""
    captures = [convoy(number + 2) for number in range(count)]
    return [
        entry(
            msgspec.structs.replace(
                capture, time_ns=(capture.time_ns or 0) + number * SECOND, notes=()
            ),
            f"{number}.jsonl",
        )
        for number, capture in enumerate(captures)
    ]


def counted() -> Entry:
    """A capture of another tool: threads are counted, some say how long they have waited."""
    capture = importers.load(b"a;b;c 17\na;b 4\nmain;poll 1000000\n", "counted")[0]
    return entry(capture, "counted.folded")


@functools.cache
def dumps() -> tuple[Entry, ...]:
    """Return dumps of real servers."""
    return tuple(
        entry(capture, name)
        for name in gdb_dumps.NAMES
        for capture in importers.load(gdb_dumps.dump(name), name)
    )


def total(entries: Iterable[Entry]) -> int:
    """Return the threads that the analyses count."""
    return sum(count_threads(item.analysis) for item in entries)


def hostile(text: str, other: str = "x") -> Capture:
    """Return a capture in which everything that a target can name is ``text``."""
    frames = tuple(
        Frame(symbol=name, pc=0x1000 + number, offset=number, source=f"{text}:7")
        for number, name in enumerate((text, other, text + other, "dispatch_command"))
    )
    lock = Lock(process=0, address=0xD000, kind=LockKind.MUTEX, symbol=text, owner_tid=2, waiters=1)
    first = Thread(
        tid=1,
        frames=frames,
        name=text,
        state="S",
        lock=0,
        waited_ns=SECOND,
        activity=text,
        command=text,
        query=text,
        digest=text,
        user=text,
        database=text,
    )
    second = Thread(tid=2, frames=frames[2:], name=other, state="R", on_cpu=True)
    third = Thread(tid=3, frames=(), name=text, activity=text)
    return Capture(
        backend="bpf",
        processes=(Process(1, comm=text, exe=text),),
        threads=(first, second, third),
        locks=(lock,),
        time_ns=1_763_714_796 * SECOND,
    )


def raw(*names: str) -> Entry:
    """Return one thread with a stack of names that no importer has cut, innermost first."""
    made = entry(hostile("f"))
    group = Group(count=1, state="waiting", frames=names, threads=(2,))
    return msgspec.structs.replace(
        made, analysis=msgspec.structs.replace(made.analysis, groups=(group,))
    )


def history(text: str = "LOCK_open") -> History:
    """Return what an incident has in addition to its captures."""
    start = 1_763_714_796 * SECOND
    samples = tuple(
        Sample(
            source="status",
            time_ns=start + number * SECOND,
            clock_ns=(1000 + number) * SECOND,
            values={"Threads_running": 3.0 + number, "Uptime_always": 1.0, text: float(number)},
        )
        for number in range(5)
    )
    event = Event(
        kind="mutex",
        name=text,
        in_flight=True,
        tid=101,
        comm=text,
        start_ns=1001 * SECOND,
        length_ms=200.0,
        waiters=7,
        frames=(text, "dispatch_command"),
    )
    waits = tuple(
        WaitLine(
            schema="stallscope.waits/1",
            ts=start / SECOND + number + 1,
            seconds=1.0,
            kinds={"mutex": KindWaits(count=number, total_ms=10.0 * number, max_ms=9.0)},
            keys=(),
            lost={},
            targets=(Target(pid=100, comm="mysqld"),),
            events=(
                msgspec.structs.replace(event, in_flight=number == 1, length_ms=200.0 * number),
            )
            if number
            else (),
        )
        for number in range(3)
    )
    incident = Incident(
        id="20251121T084636.000Z-mysqld-100",
        start_ns=start + SECOND,
        end_ns=start + 4 * SECOND,
        target=TargetEntry(pid=100, name="mysqld"),
        triggers=(
            Fired("threads-running", f"{text} 187 > 40", start + SECOND, value=187, threshold=40),
        ),
        captures=(CaptureEntry("captures/0001.jsonl.zst", start + SECOND, "trigger"),),
        verdict=Verdict("table-open-lock", text, 0.9),
    )
    return History(incident, samples, waits)


def run(*argv: str | Path, input: bytes | None = None, seconds: float = PATIENCE) -> str:
    """Run a reader; return what it printed. It must not complain."""
    words: Sequence[str] = [str(word) for word in argv]
    done = subprocess.run(words, input=input, capture_output=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout.decode()


@functools.cache
def pprof_program() -> tuple[str, ...]:
    """Return the command that reads pprof's files: ``go tool`` takes longer than what it starts."""
    program = run("go", "tool", "-n", "pprof").strip()
    return (program,) if os.access(program, os.X_OK) else ("go", "tool", "pprof")

# SPDX-License-Identifier: Apache-2.0
"""How soon after its threshold a wait is known to the agent, which rests before, and captured."""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.bench import progress
from tests.bench.blocks import schedule
from tests.bench.overhead_variants import rests, wait_at_rest
from tests.bench.stats import BenchError, Figure, Interval, Row, Section, figure
from tests.support.agents import AgentProcess, agent, incidents
from tests.support.known_waits import Call, known_waits, make
from tests.support.servers import program
from tests.support.stalls.redo_sync import Device, device_missing, loop_device
from tests.support.targets import Target

__all__ = ["latency_section", "wait_closed"]

WAIT_SECONDS = 0.5
THRESHOLD_MS = 250
KNOWN_GOAL_MS = 100.0
BURST_GOAL_MS = 60.0
END_SECONDS = 30.0
IDLE_THREADS = 400
KINDS = ("mutex", "fsync", "fallocate")
SETTINGS = """\
defaults = false
poll-interval = 0.1
captures-an-hour = 100000
"""
TRIGGER = f"""
[[trigger]]
name = "KIND"
wait = "KIND"
threshold = {THRESHOLD_MS}
clear-cycles = 1
sleep = 0
run-time = 0
"""


@dataclass(frozen=True)
class Lateness:
    """Of one wait, in ms after its threshold."""

    known_ms: float
    """When the probe had learned of it, as the capture says."""
    begun_ms: float
    """When its first capture began, by the clocks of the thread that waits and of the capture."""

    @property
    def burst_ms(self) -> float:
        """From when it was known until the burst began."""
        return self.begun_ms - self.known_ms


def lateness_of(call: Call, captures: Sequence[Capture], wall_ns: int) -> Lateness | None:
    """Return how late the first capture of a wait is; None: there is none.

    The clock of captures is ``wall_ns`` ahead of that of the target.
    """
    own = [
        capture
        for capture in captures
        if capture.time_ns is not None and call.start_ns <= capture.time_ns - wall_ns <= call.end_ns
    ]
    first = min(own, key=lambda capture: capture.time_ns or 0, default=None)
    if first is None or first.time_ns is None:
        return None
    trigger = first.trigger
    if trigger is None or trigger.delay_ms is None:
        raise BenchError(f"a capture does not say how late it is: {trigger}")
    begun = (first.time_ns - wall_ns - call.start_ns) / 1e6 - THRESHOLD_MS
    return Lateness(trigger.delay_ms, begun)


def latency_section(count: int, seed: int) -> Iterator[Section]:
    """Make waits of half a second for a lock, a sync and space of a file, each from rest."""
    kinds = list(KINDS)
    reason = device_missing()
    if reason is not None:
        kinds = ["mutex"]
    found: dict[str, list[Lateness]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallscope-bench-")))
        device = None if reason is not None else stack.enter_context(loop_device())
        files = folder if device is None else device.folder
        target = stack.enter_context(known_waits(files, idle=IDLE_THREADS))
        triggers = folder / "triggers.toml"
        triggers.write_text(SETTINGS + "".join(TRIGGER.replace("KIND", kind) for kind in kinds))
        store = folder / "store"
        watch = stack.enter_context(agent(target.pid, store, "--triggers", triggers, "--no-sql"))
        asker = stack.enter_context(ThreadPoolExecutor(1))
        for number, block in enumerate(schedule(kinds, count, random.Random(seed)), 1):
            for kind in block:
                progress(f"waits: {kind}, {number} of {count}")
                wait_at_rest(watch)
                ended = len(watch.of("end"))
                call = one_wait(kind, target, device, asker)
                wait_closed(watch, ended)
                wall_ns = time.time_ns() - time.monotonic_ns()
                late = lateness_of(call, captures_of(store), wall_ns)
                found[kind] += [] if late is None else [late]
    yield section_of(found, count, seed, None if reason is None else f"fsync, fallocate: {reason}")


def one_wait(kind: str, target: Target, device: Device | None, asker: ThreadPoolExecutor) -> Call:
    """Make one wait of half a second; return what its thread says of it."""
    if kind == "mutex":
        (call,) = make(target, f"mutex 1 {WAIT_SECONDS * 1000:.0f}").calls
        return call
    assert device is not None
    make(target, f"{kind} 1")  # the file is there, and open
    with held_back(kind, device):
        asked = asker.submit(make, target, f"again {kind} 1")
        time.sleep(WAIT_SECONDS)
    (call,) = asked.result().calls
    return call


@contextmanager
def held_back(kind: str, device: Device) -> Iterator[None]:
    """Let an operation wait: a sync for the device below, a change for its own file system."""
    own = [str(program("fsfreeze")), str(device.folder)]
    try:
        if kind == "fsync":
            device.freeze()
        else:
            subprocess.run([own[0], "--freeze", own[1]], check=True, capture_output=True)
        yield
    finally:
        if kind == "fsync":
            device.thaw()
        else:
            subprocess.run([own[0], "--unfreeze", own[1]], check=False, capture_output=True)


def wait_closed(watch: AgentProcess, ended: int) -> None:
    """Wait until the incident of the last wait is closed; a wait that was missed has none."""
    with suppress(AssertionError):
        watch.wait(lambda: len(watch.of("end")) > ended, "end", END_SECONDS)


def captures_of(store: Path) -> list[Capture]:
    return [
        capturefile.read(store / "incidents" / incident.id / entry.file)
        for incident in incidents(store)[-2:]
        for entry in incident.captures
    ]


def section_of(
    found: dict[str, list[Lateness]], count: int, seed: int, missing: str | None
) -> Section:
    rows, goals = [], []
    for kind, late in found.items():
        cells: dict[str, Figure | Interval | str] = {
            "waits": f"{count}",
            "captured": f"{len(late)}",
        }
        goals.append((f"{kind}: {len(late)} of {count} waits captured", len(late) == count))
        if late:
            known = [one.known_ms for one in late]
            burst = [one.burst_ms for one in late]
            cells["known after the threshold"] = figure(known, "ms")
            cells["first capture after the threshold"] = figure([x.begun_ms for x in late], "ms")
            cells["after it was known"] = figure(burst, "ms")
            goals.append(
                (
                    f"{kind}: known {max(known):.1f} ms after the threshold at most,"
                    f" {KNOWN_GOAL_MS:g} allowed",
                    max(known) <= KNOWN_GOAL_MS,
                )
            )
            goals.append(
                (
                    f"{kind}: captures begin {max(burst):.1f} ms after that at most,"
                    f" {BURST_GOAL_MS:g} allowed",
                    max(burst) <= BURST_GOAL_MS,
                )
            )
        rows.append(Row(kind, cells))
    return Section(
        "figures-latency",
        f"Waits of {WAIT_SECONDS * 1000:.0f} ms, threshold {THRESHOLD_MS} ms, beside"
        f" {IDLE_THREADS} idle threads",
        tuple(rows),
        checks=("the agent rests before each of them",) if rests() else (),
        goals=tuple(goals),
        left_out=() if missing is None else (missing,),
        notes=(f"seed {seed}; kinds in random order",),
    )

# SPDX-License-Identifier: Apache-2.0
"""Kill stallscope-probe at any moment, and see whether its targets go on and nothing is left.

Each way of running the probe has targets of its own. After each kill no thread of them is stopped
or traced, all of them answer, no process of the probe is left, the kernel has none of its BPF
objects any more, and the code of the targets is what their files hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path

from stallscope.base.errors import Exit
from stallscope.collectors import probe
from stallscope.collectors import rings as find_rings
from stallscope.model import capturefile
from tests.support.bpf_objects import held, loaded
from tests.support.servers import PATIENCE, Late, wait_until
from tests.support.servers.inside import library_path, one_ring
from tests.support.targets import Target, trouble_left
from tests.support.usage import children

__all__ = ["IN_GUEST", "WAYS", "KillError", "Victims", "Way", "kill_many", "victims"]

IN_GUEST = "STALLSCOPE_GUEST" in os.environ
SAMPLES = 2 if IN_GUEST else 5
"""Of how long a run takes; it is measured again whenever one has ended before its kill."""
THREADS = 20 if IN_GUEST else 60
PR_SET_CHILD_SUBREAPER = 36
LOCKS = ("mutex", "cond", "rwlock")
CALLS = 500
"""Of a function with a uprobe, in a row."""


class KillError(Exception):
    """A killed probe left something behind."""


@dataclass(frozen=True)
class Moments:
    """When to kill: half of the moments lie anywhere, half where it is the most dangerous.

    Seconds after the probe was started.
    """

    whole: float
    begin: float
    end: float

    def choose(self, rng: random.Random) -> float:
        """Return seconds after the start of the probe."""
        if rng.random() < 0.5:
            return rng.uniform(0, self.whole)
        return rng.uniform(self.begin, self.end)


@dataclass(frozen=True)
class Way:
    """One way of running the probe."""

    name: str
    words: tuple[str, ...]
    """PID is replaced by its targets, RING by the folder of the ring."""
    stops: bool = False
    """It stops threads: calls return EINTR, where that is asked for."""
    inside: bool = False
    """The in-process library is in its target."""
    watches: bool = False
    """It watches waits until it is killed; what serves is asked for captures meanwhile."""

    @property
    def id(self) -> str:
        return f"{self.words[0]}-{self.words[2]}"


PID, RING = "PID", "RING"
_WATCH = ("--interval", "100", "--threshold", "1")
WAYS = (
    Way("snap, bpf", ("snap", "--backend", "bpf", PID)),
    Way("snap, proc", ("snap", "--backend", "proc", PID)),
    Way("snap, ptrace", ("snap", "--backend", "ptrace", "--stop-blocked-reads", PID), stops=True),
    Way("snap, inproc", ("snap", "--backend", "inproc", "--ring", RING, PID), inside=True),
    Way("waits, bpf", ("waits", "--backend", "bpf", *_WATCH, PID), watches=True),
    Way(
        "waits, inproc",
        ("waits", "--backend", "inproc", "--ring", RING, *_WATCH, PID),
        inside=True,
        watches=True,
    ),
    Way("serve --watch, bpf", ("serve", "--backend", "bpf", "--watch", *_WATCH, PID), watches=True),
)


@dataclass
class Victims:
    """The targets of one way, while they run."""

    way: Way
    targets: list[Target]
    sleepers: Target | None = None
    """That counts calls that returned with EINTR."""
    busy: Target | None = None
    """That calls functions of servers all the time."""
    ring: Path | None = None
    rings: Path | None = None
    codes: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    own: set[int] = field(default_factory=set)
    """Children of ours that are not the probe's."""

    def command(self) -> list[str]:
        pids = [word for target in self.targets for word in ("--pid", str(target.pid))]
        argv = [str(probe.find())]
        for word in self.way.words:
            argv += pids if word == PID else [str(self.rings)] if word == RING else [word]
        return argv

    def check(self, when: str) -> None:
        """Raise KillError unless all of them are as they were."""
        for target in self.targets:
            if left := trouble_left(target.pid):
                raise KillError(f"{when}, left behind in {target.name}: {left[:3]}")
            if not target.running():
                raise KillError(f"{when}: {target.name} is gone")
        if not self.targets[0].beats_on():
            raise KillError(f"{when}: {self.targets[0].name} answers no more")
        if self.failures:
            raise KillError(f"{when}: {self.failures[0]!r}")
        for pid, code in self.codes.items():
            left_or_raise(partial(breakpoints, pid, code), f"{when}, left in the code of {pid}")
        if self.ring is not None:
            find_rings.read(self.ring)

    def capture_right(self) -> None:
        """Raise KillError unless the next probe has all frames of all threads of the first."""
        backend = next((word for word in ("bpf", "proc", "ptrace") if word in self.way.words), "")
        words = ["--backend", backend or "inproc", "--pid", str(self.targets[0].pid)]
        words += ["--ring", str(self.rings)] if self.way.inside else []
        words += ["--stop-blocked-reads"] if self.way.stops else []
        done = subprocess.run(
            [str(probe.find()), "snap", *words],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode not in (0, 3):
            raise KillError(f"no capture afterwards: {done.stderr.decode(errors='replace')}")
        capture = capturefile.loads(done.stdout, "kills")
        threads = {thread.tid: thread for thread in capture.threads}
        facts = self.targets[0].threads
        if self.way.inside:  # a ring has the stacks of those that wait for locks
            facts = [fact for fact in facts if fact.wait in LOCKS]
        for fact in facts:
            own = [frame.symbol for frame in threads[fact.tid].frames if frame.symbol]
            expected = fact.expected()
            if [name for name in own if name in set(expected)] != expected:
                raise KillError(f"the capture afterwards is wrong: {fact}, {own}")

    def interrupted(self) -> int:
        """Return how many calls returned with EINTR so far."""
        if self.sleepers is None:
            return 0
        self.sleepers.wait_asleep()
        return int(self.sleepers.ask("eintr")["times"])


@contextmanager
def victims(way: Way) -> Iterator[Victims]:
    """Run the targets of one way; the first has a heartbeat."""
    with ExitStack() as stack:
        found = Victims(way, [])
        env: dict[str, str] = {}
        if way.inside:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="stallscope-rings-", dir="/dev/shm")
            )
            found.rings = Path(folder)
            env = {"LD_PRELOAD": str(library_path()), "STALLSCOPE_RUNTIME_DIR": folder}
        found.targets.append(
            stack.enter_context(Target("threads", str(THREADS), "25", env=env)),
        )
        if way.inside:
            found.ring = one_ring(Path(folder))
        else:
            # As a debugger stops threads, these see it; the backend that stops them is asked to.
            found.sleepers = stack.enter_context(Target("eintr", "5"))
            if not way.stops:
                found.targets.append(found.sleepers)
        if way.watches and not way.inside:
            found.busy = stack.enter_context(server_target())
            found.targets.append(found.busy)
            stack.enter_context(kept_busy(found))
        stack.enter_context(adopting())
        found.own = set(children(os.getpid()))
        found.codes = {target.pid: code_of(target) for target in found.targets}
        yield found


def server_target() -> Target:
    """Return the target with functions named as a server's: uprobes are put on them."""
    return Target("server")


@contextmanager
def kept_busy(victims: Victims) -> Iterator[None]:
    """Call functions with uprobes during the block; the answers say that the target goes on."""
    over = threading.Event()
    target = victims.busy
    assert target is not None

    def work() -> None:
        try:
            while not over.wait(0.005):
                assert "ns" in target.ask(f"storm {CALLS}")
        except BaseException as error:
            victims.failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def code_of(target: Target) -> list[tuple[int, bytes]]:
    """Return the executable pages of its own file: where they are, and what the file holds."""
    found = []
    data = target.executable.read_bytes()
    for line in Path(f"/proc/{target.pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if fields[1] == "r-xp" and fields[-1] == str(target.executable):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            offset = int(fields[2], 16)
            found.append((start, data[offset : offset + end - start]))
    assert found, f"{target.name} has no code"
    return found


def breakpoints(pid: int, code: Sequence[tuple[int, bytes]]) -> set[str]:
    """Return the mappings that are in memory not as they are in the file."""
    found = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, data in code:
            memory.seek(start)
            if memory.read(len(data)) != data:
                found.add(f"{start:#x}")
    return found


def kill_many(victims: Victims, count: int, rng: random.Random) -> Iterator[bool]:
    """Kill that many probes; yield of each whether it was still running.

    Raises KillError where something stays.
    """
    moments = measure(victims, SAMPLES)
    for nr in range(count):
        alive = kill_once(victims, moments.choose(rng), audited=nr % 4 == 0)
        if not alive:
            # The machine may have become faster since the probe was measured.
            moments = min(moments, measure(victims, 1), key=attrgetter("whole"))
        yield alive


def measure(victims: Victims, runs: int) -> Moments:
    """Let some runs get through, to learn when one does what; return those of the fastest."""
    once = measure_watch if victims.way.watches else measure_snap
    return min((once(victims) for _ in range(runs)), key=attrgetter("whole"))


def measure_snap(victims: Victims) -> Moments:
    with subprocess.Popen(
        victims.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        started_ns, start = time.time_ns(), time.monotonic()
        written, _ = process.communicate()
        whole = time.monotonic() - start
    # A busy machine may need longer than the deadline for a part of it.
    if process.returncode not in (Exit.DONE, Exit.PARTIAL):
        raise KillError(f"no capture: exit status {process.returncode}")
    capture = capturefile.loads(written, "kills")
    assert capture.time_ns is not None
    begin = (capture.time_ns - started_ns) / 1e9
    taking = (capture.phases["attach_ns"] + capture.phases["snapshot_ns"]) / 1e9
    return Moments(whole, begin, begin + taking)


def measure_watch(victims: Victims) -> Moments:
    """Where it watches until it is killed, the moments lie until some time after it was ready."""
    with running(victims, subprocess.PIPE) as process:
        start = time.monotonic()
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        ready = time.monotonic() - start
        process.kill()
    return Moments(1.5 * ready, 0.5 * ready, 2 * ready)


@contextmanager
def running(victims: Victims, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the probe until the block ends, as the leader of a session."""
    with subprocess.Popen(
        victims.command(),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            if victims.way.words[0] == "serve":
                assert process.stdin is not None
                process.stdin.write(b"snap\n" * 1000)
                process.stdin.flush()
            yield process
        finally:
            process.kill()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()


def kill_once(victims: Victims, after: float, *, audited: bool = False) -> bool:
    """Kill a probe that long after its start; say whether it was still running.

    ``audited``: it is stopped before, so that all can be known that it holds by then. Raises
    KillError where something stays.
    """
    when = f"killed after {1000 * after:.2f} ms"
    objects: set[str] = set()
    with running(victims, subprocess.DEVNULL) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after)
        if audited and process.poll() is None:
            objects = held_when_stopped(process)
        alive = process.poll() is None
        process.kill()
        process.wait(PATIENCE)
        left_or_raise(lambda: adopted(victims.own), f"{when}, processes of it are left")
    left_or_raise(lambda: objects & loaded() if objects else set(), f"{when}, left in the kernel")
    victims.check(when)
    return alive


def held_when_stopped(process: subprocess.Popen[bytes]) -> set[str]:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: state(process.pid) in "TZX", "the probe is stopped")
        return held(process.pid)
    return set()


def left_or_raise(left: Callable[[], set[str]], what: str) -> None:
    """Wait until nothing is left; the kernel takes its time to free what it had."""
    with contextlib.suppress(Late):
        wait_until(lambda: not left(), what)
    if found := left():
        raise KillError(f"{what}: {sorted(found)[:5]}")


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


@contextmanager
def adopting() -> Iterator[None]:
    """Become, inside of the block, the parent of what a killed probe leaves behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def adopted(own: Collection[int]) -> set[str]:
    """Return the children that we did not start and that still run; reap those that have ended."""
    found = set()
    for child in set(children(os.getpid())) - set(own):
        if state(child) in "ZX":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        else:
            found.add(str(child))
    return found

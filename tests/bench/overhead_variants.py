# SPDX-License-Identifier: Apache-2.0
"""What runs beside a server while its CPU time is measured: nothing, parts of us, all of us."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stallscope.collectors.probestream import Stream
from stallscope.collectors.storage import Options, arguments
from stallscope.model.storage import MAX_LINE
from tests.bench.stats import BenchError
from tests.bench.watchers import Watching, probe_waits
from tests.support.agents import CHECKOUT, AgentProcess, agent
from tests.support.bpf_objects import attached
from tests.support.empty_programs import empty_programs
from tests.support.servers import Late, wait_until
from tests.support.usage import process_tree

__all__ = [
    "AGAIN",
    "ALWAYS",
    "ALWAYS_ON",
    "EMPTY",
    "NORMAL",
    "NOTHING",
    "NO_UPROBES",
    "PYTHON",
    "SQL",
    "STOPPED",
    "STORAGE",
    "VARIANTS",
    "WAITS",
    "WHOLE",
    "Variant",
    "always_on",
    "left_out",
    "rests",
    "settled_agent",
    "start_agent",
    "stopped",
    "variants",
    "wait_at_rest",
]

NOTHING = "nothing"
AGAIN = "nothing again"
EMPTY = "empty programs on sys_enter, sys_exit"
STOPPED = "wait programs without uprobes, reader stopped"
NO_UPROBES = "wait programs without uprobes"
WAITS = "wait programs"
PYTHON = "agent without probe and SQL"
SQL = "agent without probe"
WHOLE = "agent"
ALWAYS = "agent, attached all the time"
NORMAL = "the same at normal priority"
STORAGE = "stallscope-probe storage"

ALWAYS_ON = "--always-on"
SETTLE_SECONDS = 1.0
"""From when a variant is there: what it does once is not what it costs."""
REST_SECONDS = 180.0
STOP_SECONDS = 30.0


@functools.cache
def rests() -> bool:
    """Return whether the agent attaches nothing to the kernel at rest: then it has an option."""
    done = subprocess.run(
        [sys.executable, "-m", "stallscope", "watch", "--help"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return ALWAYS_ON in done.stdout


def always_on() -> tuple[str, ...]:
    """Return the options with which the agent is attached all the time."""
    return (ALWAYS_ON,) if rests() else ()


def wait_at_rest(watch: AgentProcess, seconds: float = REST_SECONDS) -> None:
    """Wait until an agent that can rest does so."""
    if not rests():
        return
    try:
        wait_until(lambda: not attached(watch.members()), "the agent rests", seconds)
    except Late as late:
        raise BenchError(f"{late}; {watch.outline()}") from late


@contextmanager
def settled_agent(pid: int, *options: str, resting: bool = True) -> Iterator[AgentProcess]:
    """Run the agent on a process; at the start of the block it rests, or is attached."""
    with (
        tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder,
        agent(pid, Path(folder) / "store", *options) as watch,
    ):
        if resting:
            wait_at_rest(watch)
        time.sleep(SETTLE_SECONDS)
        yield watch


def set_normal_priority(pids: Sequence[int]) -> None:
    """Take back the priority that the agent and its probe gave themselves."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), 0)
        with contextlib.suppress(OSError):  # a kernel without it, or a session of somebody else
            Path(f"/proc/{pid}/autogroup").write_text("0\n")


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes that this benchmark has started, and continue them at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(map(is_stopped, pids)), f"{pids} stop", STOP_SECONDS)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


Pids = Callable[[], Sequence[int]]
"""Returns the processes of a variant that runs."""


@dataclass(frozen=True)
class Variant:
    """One thing that can run beside a process; ``start`` takes that process's pid."""

    name: str
    start: Callable[[int], AbstractContextManager[Pids]]

    def __str__(self) -> str:
        return self.name


@contextmanager
def start_nothing(_pid: int) -> Iterator[Pids]:
    yield lambda: ()


@contextmanager
def start_empty(_pid: int) -> Iterator[Pids]:
    with empty_programs():
        yield lambda: ()


def start_waits(
    *options: str, is_stopped: bool = False
) -> Callable[[int], AbstractContextManager[Pids]]:
    @contextmanager
    def start(pid: int) -> Iterator[Pids]:
        with Watching(probe_waits(*options), pid) as watching, ExitStack() as stack:
            time.sleep(SETTLE_SECONDS)
            own = process_tree(watching.pid)
            if is_stopped:
                stack.enter_context(stopped(own))
            yield lambda: own

    return start


@contextmanager
def start_storage(pid: int) -> Iterator[Pids]:
    """Count what the server writes, with a line each second."""
    stream = Stream(arguments((pid,), Options(interval=1.0)), max_line=MAX_LINE)
    with stream:
        next(stream.lines(REST_SECONDS, lambda: math.inf))
        # Under reads alone it has nothing to count, and runs all the same.
        if not attached((stream.pid,)):
            raise BenchError(f"{STORAGE} has attached nothing")
        time.sleep(SETTLE_SECONDS)
        yield lambda: (stream.pid,)


def start_agent(
    *options: str, normal: bool = False
) -> Callable[[int], AbstractContextManager[Pids]]:
    @contextmanager
    def start(pid: int) -> Iterator[Pids]:
        with settled_agent(pid, *options, resting=ALWAYS_ON not in options) as watch:
            if ALWAYS_ON in options and not attached(watch.members()):
                raise BenchError(f"{ALWAYS_ON}: nothing is attached; {watch.outline()}")
            if normal:
                set_normal_priority(watch.members())
            yield watch.members

    return start


VARIANTS = (
    Variant(NOTHING, start_nothing),
    Variant(AGAIN, start_nothing),
    Variant(EMPTY, start_empty),
    Variant(STOPPED, start_waits("--no-uprobes", is_stopped=True)),
    Variant(NO_UPROBES, start_waits("--no-uprobes")),
    Variant(WAITS, start_waits()),
    Variant(PYTHON, start_agent("--no-probe", "--no-sql")),
    Variant(SQL, start_agent("--no-probe")),
    Variant(WHOLE, start_agent()),
    Variant(ALWAYS, start_agent(ALWAYS_ON)),
)


def variants(*names: str) -> list[Variant]:
    """Return the variants that are possible here, of these names or all."""
    found = [*VARIANTS, Variant(NORMAL, start_agent(*always_on(), normal=True))]
    if not rests():
        found = [variant for variant in found if variant.name != ALWAYS]
    if STORAGE in names:
        found.append(Variant(STORAGE, start_storage))
    return [variant for variant in found if not names or variant.name in names]


def left_out() -> tuple[str, ...]:
    """Say which variants are not possible here, and why."""
    if rests():
        return ()
    return (f"{ALWAYS}: watch has no {ALWAYS_ON}, and is attached all the time as it is",)

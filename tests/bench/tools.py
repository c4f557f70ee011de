# SPDX-License-Identifier: Apache-2.0
"""The programs that are compared: each captures all stacks of a process, and is read back.

What a program printed is parsed, so that a broken capture does not count as a fast one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Label
from tests.bench.stats import BenchError
from tests.support.servers import program
from tests.support.usage import process_tree, status_kb, tree_cpu_ns

__all__ = [
    "COLD_PROBE",
    "PEERS",
    "Control",
    "Once",
    "ServingProbe",
    "Stack",
    "Taken",
    "Tool",
    "cold_probe",
    "command",
    "peers",
    "read_back",
]

COLD_PROBE = "stallscope-probe snap"


@dataclass(frozen=True)
class Stack:
    """One stack of ``count`` threads, innermost first; an empty name is a frame without one."""

    names: tuple[str, ...]
    tid: int = 0
    count: int = 1


@dataclass(frozen=True)
class Taken:
    """One capture. Times are CLOCK_MONOTONIC nanoseconds, from the request to the last byte."""

    start_ns: int
    end_ns: int
    stacks: tuple[Stack, ...]
    cpu_ns: int = 0
    max_rss_kb: int = 0
    capture: Capture | None = None
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def wall_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6

    @property
    def threads(self) -> int:
        return sum(stack.count for stack in self.stacks)


class Tool(Protocol):
    """Anything that captures."""

    @property
    def name(self) -> str: ...

    def capture(self, pid: int) -> Taken:
        """Capture once and read back what was captured."""


def run(argv: Sequence[str], parse: Callable[[str], list[Stack]]) -> Taken:
    """Run a program that prints stacks, into a file: it never waits for us to read."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.monotonic_ns()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        _, status, usage = os.wait4(process.pid, 0)
        end = time.monotonic_ns()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        text = output.read().decode(errors="replace")
        said = errors.read().decode(errors="replace").strip()
    # eu-stack ends with 1 where a single stack has no proper end: what it printed is what counts.
    stacks = parse(text)
    if not stacks:
        raise BenchError(f"{argv[0]} captured nothing ({process.returncode}): {said[-500:]}")
    cpu = int((usage.ru_utime + usage.ru_stime) * 1e9)
    return Taken(start, end, tuple(stacks), cpu, usage.ru_maxrss)


GDB_THREAD = re.compile(r"^Thread \d+ \((?:Thread 0x[0-9a-f]+ )?\(?LWP (\d+)\)?")
GDB_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) \(")
EU_FRAME = re.compile(r"^#\d+\s+0x[0-9a-f]+(?:\s+(?:- \d+\s+)?(\S.*))?$")
PMP_LINE = re.compile(r"^\s*(\d+)\s+(\S.*)$")


def parse_gdb(text: str) -> list[Stack]:
    """Read ``thread apply all bt``."""
    stacks: list[tuple[int, list[str]]] = []
    for line in text.splitlines():
        if match := GDB_THREAD.match(line):
            stacks.append((int(match[1]), []))
        elif stacks and (match := GDB_FRAME.match(line)):
            stacks[-1][1].append("" if match[1] == "??" else match[1])
    return [Stack(tuple(names), tid) for tid, names in stacks if names]


def parse_eu_stack(text: str) -> list[Stack]:
    """Read what eu-stack prints, with names or (``-q``) without."""
    stacks: list[tuple[int, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("TID "):
            stacks.append((int(line[4:].rstrip(":")), []))
        elif stacks and (match := EU_FRAME.match(line)):
            stacks[-1][1].append(match[1] or "")
    return [Stack(tuple(names), tid) for tid, names in stacks if names]


def parse_pmp(text: str) -> list[Stack]:
    """Read what pt-pmp prints: a count and the names of one stack a line."""
    stacks = []
    for line in text.splitlines():
        if match := PMP_LINE.match(line):
            names = ("" if name.startswith("??") else name for name in match[2].split(","))
            stacks.append(Stack(tuple(names), count=int(match[1])))
    return stacks


@dataclass(frozen=True)
class Peer:
    """A program of others: ``argv`` with PID in the place of the process id."""

    name: str
    argv: tuple[str, ...]
    parse: Callable[[str], list[Stack]]
    stops: bool = True

    def missing(self) -> bool:
        return program(self.argv[0]) is None

    def capture(self, pid: int) -> Taken:
        argv = [str(pid) if word == "PID" else word for word in self.argv]
        return run([str(program(argv[0])), *argv[1:]], self.parse)


GDB = ("gdb", "-nx", "-batch", "-ex", "set pagination 0", "-ex", "thread apply all bt")
PEERS = (
    Peer("gdb", (*GDB, "-p", "PID"), parse_gdb),
    Peer("gdb --readnever", (*GDB, "--readnever", "-p", "PID"), parse_gdb),
    Peer("eu-stack", ("eu-stack", "-p", "PID"), parse_eu_stack),
    Peer("eu-stack -q", ("eu-stack", "-q", "-p", "PID"), parse_eu_stack),
    Peer("pt-pmp", ("pt-pmp", "--pid", "PID"), parse_pmp),
)


def peers() -> list[Peer]:
    """Return the peers that are installed here."""
    return [peer for peer in PEERS if not peer.missing()]


def read_back(start: int, end: int, data: bytes, name: str, cpu: int = 0, rss: int = 0) -> Taken:
    """Read a capture back from its text."""
    capture = capturefile.loads(data, name)
    labels = {label.value: 0 for label in Label}
    for thread in capture.threads:
        if thread.label is not None:
            labels[thread.label.value] += 1
    stacks = tuple(
        Stack(tuple(frame.symbol or "" for frame in thread.frames if not frame.kernel), thread.tid)
        for thread in capture.threads
    )
    return Taken(start, end, stacks, cpu, rss, capture, labels)


class Once:
    """A program of ours that is started for one capture; FILE in ``argv`` is where it goes."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self.argv = argv

    def capture(self, pid: int) -> Taken:
        with tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder:
            file = Path(folder) / "capture.jsonl"
            words = {"PID": str(pid), "FILE": str(file)}
            start = time.monotonic_ns()
            process = subprocess.Popen(
                [words.get(word, word) for word in self.argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            _, status, usage = os.wait4(process.pid, 0)
            end = time.monotonic_ns()
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.stderr is not None
            with process.stderr:
                said = process.stderr.read().decode(errors="replace").strip()
            if process.returncode not in (0, 3):
                raise BenchError(f"{self.name} ({process.returncode}): {said}")
            cpu = int((usage.ru_utime + usage.ru_stime) * 1e9)
            return read_back(start, end, file.read_bytes(), self.name, cpu, usage.ru_maxrss)


def cold_probe() -> Once:
    """Return stallscope-probe, started for each capture."""
    argv = [str(probe.find()), "snap", "--backend", "bpf", "--pid", "PID", "--output", "FILE"]
    return Once(COLD_PROBE, argv)


def command() -> Once:
    """Return the command line, started for each capture: it names the stall, too."""
    run_it = [sys.executable, "-P", "-m", "stallscope", "snap", "--json"]
    return Once("stallscope snap", [*run_it, "--backend", "bpf", "-p", "PID", "-o", "FILE"])


class Control:
    """A process that reads nothing and keeps one CPU busy for a while.

    What it adds to the gaps of a heartbeat is the price of CPU time alone.
    """

    def __init__(self, milliseconds: int) -> None:
        self.name = f"(a process that is busy for {milliseconds} ms)"
        lines = ["import time", f"end = time.monotonic() + {milliseconds / 1000}"]
        code = "\n".join([*lines, "while time.monotonic() < end: pass"])
        self.argv = [sys.executable, "-I", "-S", "-c", code]

    def capture(self, pid: int) -> Taken:
        start = time.monotonic_ns()
        process = subprocess.Popen(self.argv)
        _, _, usage = os.wait4(process.pid, 0)
        end = time.monotonic_ns()
        process.returncode = 0
        return Taken(start, end, (), int((usage.ru_utime + usage.ru_stime) * 1e9), usage.ru_maxrss)


class ServingProbe:
    """A running stallscope-probe that is asked for captures. Use it as a context manager."""

    def __init__(self, pid: int, *options: str, backend: str = "bpf") -> None:
        self.name = "stallscope-probe serve"
        self.pid = pid
        argv = [str(probe.find()), "serve", "--pid", str(pid), "--backend", backend, *options]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._wait_ready()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def __enter__(self) -> ServingProbe:
        return self

    @property
    def process_id(self) -> int:
        """The probe's own, not that of its target."""
        return self._process.pid

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def capture(self, pid: int) -> Taken:
        assert pid == self.pid
        assert self._process.stdin is not None
        cpu = tree_cpu_ns(self._process.pid)
        start = time.monotonic_ns()
        self._process.stdin.write(b"snap\n")
        self._process.stdin.flush()
        lines = []
        for line in self._lines():
            if line.startswith((b'{"type":"waits"', b'{"type":"event"')):
                continue  # of a probe that also watches waits
            lines.append(line)
            if line.startswith((b'{"type":"end"', b'{"type": "end"')):
                break
        end = time.monotonic_ns()
        rss = sum(status_kb(member, "VmHWM") for member in process_tree(self._process.pid))
        cpu = tree_cpu_ns(self._process.pid) - cpu
        return read_back(start, end, b"".join(lines), self.name, cpu, rss)

    def _lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if b'"error"' in line[:40] and json.loads(line).get("type") == "error":
                raise BenchError(f"{self.name}: {json.loads(line)['message']}")
            yield line
        raise BenchError(f"{self.name} ended with {self._process.wait()}")

    def _wait_ready(self) -> None:
        for line in self._lines():
            if json.loads(line).get("type") == "ready":
                return

# SPDX-License-Identifier: Apache-2.0
"""The programs that watch the waits of a process, and what they say that they have seen.

What each printed is read back: one that counted nothing has watched nothing, however cheap it was.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Self

from stallscope.collectors import probe
from tests.bench.events import Lines, final_line
from tests.bench.stats import BenchError
from tests.support.bpf_objects import descriptors
from tests.support.servers import Late, program, wait_until
from tests.support.usage import tree_cpu_ns

__all__ = [
    "NOTHING",
    "PEERS",
    "PROBE_SERVE",
    "PROBE_WAITS",
    "STACKS",
    "Seen",
    "Watcher",
    "Watching",
    "probe_serve",
    "probe_waits",
    "why_not",
]

PROBE_WAITS = "stallscope-probe waits"
PROBE_SERVE = "stallscope-probe serve --watch"
ATTACH_SECONDS = 30.0
END_SECONDS = 60.0

# Where tracefs is not mounted, it is for this one program alone.
WITH_TRACEFS = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    '[ -d /sys/kernel/tracing/events ] || mount -t tracefs nodev /sys/kernel/tracing; exec "$@"',
    "sh",
)
# What the probes measure, as it is written in bpftrace: waits in futex by word and stack, and the
# times of the calls that write, make room for and sync files. At its end it throws the stacks away:
# to find their names in a server takes it minutes.
BPFTRACE = """
tracepoint:syscalls:sys_enter_futex
/pid == $1 && ((args->op & 127) == 0 || (args->op & 127) == 9 || (args->op & 127) == 6)/
{ @start[tid] = nsecs; @word[tid] = args->uaddr; }
tracepoint:syscalls:sys_exit_futex
/@start[tid]/
{
	@futex[@word[tid], ustack] = hist(nsecs - @start[tid]);
	@count[probe] = count();
	delete(@start[tid]);
	delete(@word[tid]);
}
ENTER
/pid == $1/
{ @since[tid] = nsecs; @file[tid] = args->fd; }
EXIT
/@since[tid]/
{
	@files[probe, @file[tid]] = hist(nsecs - @since[tid]);
	@count[probe] = count();
	delete(@since[tid]);
	delete(@file[tid]);
}
interval:ms:100 { printf("beat\\n"); }
END { clear(@futex); clear(@start); clear(@word); clear(@since); clear(@file); }
"""
FILE_CALLS = ("fsync", "fdatasync", "fallocate", "ftruncate", "pread64", "pwrite64")


def bpftrace_text() -> str:
    """Return the program of the peer bpftrace."""
    enter = ",\n".join(f"tracepoint:syscalls:sys_enter_{call}" for call in FILE_CALLS)
    return BPFTRACE.replace("ENTER", enter).replace("EXIT", enter.replace("_enter_", "_exit_"))


@dataclass(frozen=True)
class Seen:
    """What a watcher counted: waits, by what it calls them."""

    counts: dict[str, int]
    seconds: float | None = None
    """How long it watched, where it says so."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def text_of(lines: Lines) -> str:
    return "".join(line for _, line in lines)


@dataclass(frozen=True)
class Watcher:
    """A program that watches a process until it gets SIGINT; PID in ``argv`` is which."""

    name: str
    argv: tuple[str, ...]
    attached: Callable[[int, str], bool]
    seen: Callable[[Lines], Seen]
    ends_with_input: bool = False

    def __str__(self) -> str:
        return self.name


def beats(_pid: int, output: str) -> bool:
    return "beat\n" in output


def is_ready(_pid: int, output: str) -> bool:
    return '"ready"' in output.partition("\n")[0]


def has_heading(_pid: int, output: str) -> bool:
    """Return whether a tool of bcc has printed its heading, which it does once it is attached."""
    return re.search(r"^(Tracing|TIME)\b.*\n", output, re.MULTILINE) is not None


def has_bpf_links(pid: int, _output: str) -> bool:
    """Return whether a process has attached BPF programs, by the links among its open files."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return any("link_type:" in fdinfo for fdinfo in descriptors(pid))
    return False


STACKS = "stacks"
BPFTRACE_COUNT = re.compile(r"^@count\[tracepoint:syscalls:sys_exit_(\w+)\]: (\d+)$", re.MULTILINE)
OFFCPU_STACK = re.compile(r"^    -\s+\S.*\((\d+)\)\n\s+(\d+)$", re.MULTILINE)


def bpftrace_seen(lines: Lines) -> Seen:
    """Read the counts that bpftrace prints at its end."""
    return Seen({name: int(count) for name, count in BPFTRACE_COUNT.findall(text_of(lines))})


def offcputime_seen(lines: Lines) -> Seen:
    """Count the stacks that offcputime prints: it does not say how many waits they are of."""
    return Seen({STACKS: len(OFFCPU_STACK.findall(text_of(lines)))})


def lines_seen(lines: Lines) -> Seen:
    """Count the lines after the heading."""
    return Seen({STACKS: len([line for _, line in lines[1:] if line.strip()])})


def probe_seen(lines: Lines) -> Seen:
    line = final_line(lines)
    counts = {name: kind.count for name, kind in line.kinds.items() if kind.count}
    return Seen(counts, line.seconds)


def probe_waits(*options: str) -> Watcher:
    """Return ``stallscope-probe waits`` with all its default probes."""
    argv = (str(probe.find()), "waits", "--pid", "PID", *options)
    return Watcher(PROBE_WAITS, argv, is_ready, probe_seen, ends_with_input=True)


def probe_storage() -> Watcher:
    """Return ``stallscope-probe storage`` with a line each second."""
    argv = (str(probe.find()), "storage", "--pid", "PID", "--interval", "1")
    return Watcher("stallscope-probe storage", argv, has_bpf_links, lines_seen, True)


def probe_serve(*options: str) -> Watcher:
    """Return ``stallscope-probe serve --watch``, which takes captures, too."""
    argv = (str(probe.find()), "serve", "--watch", "--pid", "PID", *options)
    return Watcher(PROBE_SERVE, argv, is_ready, probe_seen, ends_with_input=True)


NOTHING = Watcher("(nothing, to show the noise)", (), lambda *_: True, lambda _: Seen({}))
PEERS = (
    Watcher(
        "bpftrace",
        (*WITH_TRACEFS, "bpftrace", "-B", "none", "-e", bpftrace_text(), "PID"),
        beats,
        bpftrace_seen,
    ),
    Watcher("offcputime", ("offcputime", "-p", "PID"), has_bpf_links, offcputime_seen),
    Watcher("offwaketime-bpfcc", ("offwaketime-bpfcc", "-p", "PID"), has_heading, lines_seen),
    Watcher("syncsnoop-bpfcc", ("syncsnoop-bpfcc",), has_heading, lines_seen),
)


class Reader:
    """A thread that reads what a program prints."""

    def __init__(self, output: IO[bytes]) -> None:
        self.lines: list[tuple[int, str]] = []
        self._output = output
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._output:
            self.lines.append((time.monotonic_ns(), line.decode(errors="replace")))

    def join(self) -> None:
        """Read to the end, which comes with that of the program."""
        self._thread.join(END_SECONDS)

    def close(self) -> None:
        self.join()
        self._output.close()


class Watching:
    """A watcher that runs; use it as a context manager. It is attached when the block begins."""

    def __init__(self, watcher: Watcher, pid: int) -> None:
        self.watcher = watcher
        self.target = pid
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: Reader | None = None
        self._said = ""

    def __enter__(self) -> Self:
        if not self.watcher.argv:
            return self
        argv = [str(self.target) if word == "PID" else word for word in self.watcher.argv]
        path = program(argv[0])
        if path is None:
            raise BenchError(f"{self.watcher}: no {argv[0]} here: run scripts/setup --all")
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [path, *argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = Reader(self._process.stdout)
        try:
            wait_until(self._attached, f"{self.watcher} is attached", ATTACH_SECONDS)
        except BaseException:
            self._process.kill()
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and not self.watcher.ends_with_input:
            self._process.send_signal(signal.SIGINT)
        self._end()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def lines(self) -> Lines:
        """What it has printed so far."""
        return tuple(self._reader.lines) if self._reader is not None else ()

    def cpu_ns(self) -> int:
        """Return its CPU time so far."""
        return 0 if self._process is None else tree_cpu_ns(self.pid)

    def seen(self) -> Seen:
        """Return what it counted, after its end; raise BenchError where that is nothing."""
        seen = self.watcher.seen(self.lines)
        if self.watcher.argv and not seen.total:
            raise BenchError(f"{self.watcher} has seen nothing: {first_complaint(self._said)}")
        return seen

    def _attached(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            assert self._reader is not None
            self._reader.join()
            size = os.fstat(self._errors.fileno()).st_size
            said = os.pread(self._errors.fileno(), size, 0).decode(errors="replace")
            raise BenchError(f"{self.watcher}: {first_complaint(text_of(self.lines) + said)}")
        return self.watcher.attached(self.pid, text_of(self.lines))

    def _end(self) -> None:
        if self._process is None or self._reader is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.close()
        with self._errors:
            self._errors.seek(0)
            self._said = self._errors.read().decode(errors="replace")


COMPLAINT = re.compile(
    r"unable|cannot|could not|couldn't|error|fail|not found|no such|denied", re.I
)


def first_complaint(said: str) -> str:
    """Return the line of what a program said that says the cause: the first one, as a rule."""
    lines = [line.strip() for line in said.splitlines() if line[:1].strip()]
    lines = [line for line in lines if not line.startswith(("sh: ", "Traceback"))]
    complaints = [line for line in lines if COMPLAINT.search(line)]
    return (complaints or lines or ["it does not say why"])[0].partition(". ")[0][:160]


@functools.cache
def why_not(watcher: Watcher) -> str | None:
    """Return why a peer cannot watch here, by trying it, or None."""
    try:
        with Watching(watcher, os.getpid()):
            return None
    except (BenchError, Late) as error:
        return str(error).removeprefix(f"{watcher}: ")

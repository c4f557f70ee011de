# SPDX-License-Identifier: Apache-2.0
"""The server's process: CPU, memory, threads, files; /proc/PID/{stat,status,io,fd,task}."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.collecting import HostCollector, Pace, as_number

__all__ = ["ProcessNumbers"]

MAX_THREADS = 20_000
STATES = "RSDTtZXIPWK"
"""Letters of fs/proc/array.c, task_state_array."""

_KB = 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_STATUS = {
    b"VmRSS": ("process.rss_bytes", _KB),
    b"VmHWM": ("process.rss_peak_bytes", _KB),
    b"VmSwap": ("process.swap_bytes", _KB),
    b"VmSize": ("process.virtual_bytes", _KB),
}
_IO = {
    b"read_bytes": "process.read_bytes",
    b"write_bytes": "process.write_bytes",
    b"syscr": "process.read_calls",
    b"syscw": "process.write_calls",
}
_SWITCHES = b"voluntary_ctxt_switches:\t"


class ProcessNumbers(HostCollector):
    """``start_time``: field 22 of its stat, where it is known: a pid can be reused."""

    name = "process"

    def __init__(
        self,
        pid: int,
        start_time: int | None = None,
        *,
        threads: bool = True,
        proc: Path = Path("/proc"),
    ) -> None:
        """``threads``: whether each of them is read, a file for each."""
        super().__init__()
        base = proc / str(pid)
        self._pid = pid
        self._start_time = start_time
        self._stat = self.keep(base / "stat", 4096)
        self._status = self.keep(base / "status", 16_384)
        self._io = self.keep(base / "io", 4096)
        self._folder = base
        self._cpu: tuple[int, float] | None = None
        self._threads = _Threads(base / "task") if threads else None
        self._fds_pace = Pace()

    def read(self, clock_ns: int) -> dict[str, float]:
        values = self._read_stat(clock_ns)
        for line in self._status.read().splitlines():
            key, _, rest = line.partition(b":")
            known = _STATUS.get(key)
            if known is not None:
                values[known[0]] = as_number(rest.split()[0]) * known[1]
        # Only its owner and root may read it.
        with contextlib.suppress(StallscopeError):
            for line in self._io.read().splitlines():
                key, _, rest = line.partition(b":")
                if key in _IO:
                    values[_IO[key]] = as_number(rest)
        fds = self._count_fds(clock_ns)
        if fds is not None:
            values["process.fds"] = fds
        if self._threads is not None:
            values.update(self._threads.read(clock_ns, self.share))
        return values

    def _read_stat(self, clock_ns: int) -> dict[str, float]:
        # The name in parentheses may itself hold blanks and parentheses.
        fields = self._stat.read().rpartition(b")")[2].split()
        if len(fields) < 22:
            raise StallscopeError(f"process {self._pid} has ended")
        if self._start_time is None:
            self._start_time = int(fields[19])
        elif int(fields[19]) != self._start_time:
            raise StallscopeError(f"process {self._pid} has ended; another process has its pid")
        if fields[0] in (b"Z", b"X"):
            raise StallscopeError(f"process {self._pid} has ended")
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        values = {
            "process.cpu_seconds": cpu,
            "process.threads": float(fields[17]),
            "process.minor_faults": float(fields[7]),
            "process.major_faults": float(fields[9]),
        }
        if self._cpu is not None and clock_ns > self._cpu[0]:
            share = (cpu - self._cpu[1]) / ((clock_ns - self._cpu[0]) / 1e9)
            values["process.cpu_share"] = max(0.0, share)
        self._cpu = (clock_ns, cpu)
        return values

    def _count_fds(self, clock_ns: int) -> float | None:
        with contextlib.suppress(OSError):
            folder = self._folder / "fd"
            # From Linux 6.2 on the size of the folder is their number (fs/proc/fd.c).
            size = os.stat(folder).st_size
            if size:
                return float(size)
            if self._fds_pace.due(clock_ns, self.share):
                count = len(os.listdir(folder))
                self._fds_pace.done(clock_ns)
                return float(count)
        return None


class _Threads:
    """Threads by state and their context switches: a file for each thread, so read at a pace."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._pace = Pace()
        self._switches: dict[str, int] = {}
        self._looked_ns = 0

    def read(self, clock_ns: int, share: float) -> dict[str, float]:
        if not self._pace.due(clock_ns, share):
            return {}
        states: Counter[str] = Counter()
        switches: dict[str, int] = {}
        try:
            tids = os.listdir(self._folder)
        except OSError:
            return {}
        for tid in tids[:MAX_THREADS]:
            text = _read(f"{self._folder}/{tid}/status")
            state = text.partition(b"\nState:\t")[2][:1].decode("ascii", "replace")
            if state in STATES and state:
                states[state] += 1
                switches[tid] = _sum_of_switches(text)
        values = {f"process.threads.{state}": 0.0 for state in "RSD"}
        values |= {f"process.threads.{state}": float(count) for state, count in states.items()}
        # Threads of both samples alone: the counters of one that has ended are gone.
        both = switches.keys() & self._switches.keys()
        if both:
            done = sum(max(0, switches[tid] - self._switches[tid]) for tid in both)
            values["process.switches_per_second"] = done / ((clock_ns - self._looked_ns) / 1e9)
        self._switches = switches
        self._looked_ns = clock_ns
        self._pace.done(clock_ns)
        return values


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _sum_of_switches(status: bytes) -> int:
    """Add voluntary and involuntary switches, the last two lines."""
    total = 0
    rest = status
    for _ in range(2):
        rest = rest.partition(_SWITCHES)[2]
        number = rest[: rest.find(b"\n")] if b"\n" in rest else rest
        total += int(number) if number.isdigit() else 0
    return total

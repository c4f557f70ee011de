# SPDX-License-Identifier: Apache-2.0
"""How busy the CPUs are: run queue, blocked processes, load; /proc/loadavg and /proc/stat."""

from __future__ import annotations

import os
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.collecting import HostCollector, Pace, as_number

__all__ = ["Load"]

_CPU = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_COUNTS = {
    b"procs_blocked": "host.blocked",
    b"ctxt": "host.switches",
    b"processes": "host.forks",
}


class Load(HostCollector):
    """``host.run_queue`` counts threads that run or wait for a CPU, without this one."""

    name = "load"

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        super().__init__()
        self._loadavg = self.keep(proc / "loadavg", 256)
        self._stat = self.keep(proc / "stat", 1 << 20)
        # Its text has all interrupts of all CPUs: reading it takes 0.1 ms here, more on a large
        # host.
        self._pace = Pace()
        self._cpu: tuple[float, ...] = ()

    def read(self, clock_ns: int) -> dict[str, float]:
        words = self._loadavg.read().split()
        if len(words) < 4:
            raise StallscopeError("/proc/loadavg cannot be read as three averages and a count")
        values = {
            "host.cpus": float(os.cpu_count() or 1),
            "host.load1": as_number(words[0]),
            "host.load5": as_number(words[1]),
            "host.load15": as_number(words[2]),
            # The reading thread is one of them.
            "host.run_queue": max(0.0, as_number(words[3].partition(b"/")[0]) - 1),
        }
        if self._pace.due(clock_ns):
            for line in self._stat.read().splitlines():
                key, _, rest = line.partition(b" ")
                if key in _COUNTS:
                    values[_COUNTS[key]] = as_number(rest)
                elif key == b"cpu":
                    self._read_cpu(rest.split(), values)
            self._pace.done(clock_ns)
        return values

    def _read_cpu(self, words: list[bytes], values: dict[str, float]) -> None:
        now = tuple(map(as_number, words[: len(_CPU)]))
        total = sum(now) - sum(self._cpu)
        # The counters of idle and I/O wait can decrease: Documentation/filesystems/proc.rst.
        if len(now) == len(self._cpu) and total > 0:
            for name, new, old in zip(_CPU, now, self._cpu, strict=False):
                values[f"host.cpu.{name}"] = max(0.0, new - old) / total
        self._cpu = now

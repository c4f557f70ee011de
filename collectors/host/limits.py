# SPDX-License-Identifier: Apache-2.0
"""The limits of the server's control groups, of version 1 or 2, and how often it meets them.

A limit can be that of a parent (a pod, a slice): each number is of the group in which it is worst.
What no group has is left out: ``cgroup.cpu.limit`` where no quota is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.cgroups import Group, groups
from stallscope.collectors.host.collecting import HostCollector, OpenedFile

__all__ = ["Limits"]

_DEFAULT_PERIOD_US = 100_000
_UNLIMITED = 1 << 60
"""Bytes: version 1 has the largest multiple of a page as "no limit"."""


_OF_ROOT = {"cpu": "cgroup.cpu.throttled_share", "memory": "cgroup.memory.limited"}


class Limits(HostCollector):
    """A root group has no limit: of a process in it, as without a container or a unit, what counts
    limits is 0, and ``cgroup.memory.oom_kills`` is the host's.

    ``cgroup.cpu.limit`` in CPUs; ``cgroup.cpu.throttled_share``: of the time since the previous
    sample, in periods of which the quota was used up; ``cgroup.cpu.throttled_us``, a counter.

    ``cgroup.memory.limit_bytes``, ``.used_bytes``; counters: ``.limited``, how often memory was at
    its limit and had to be reclaimed, and ``.oom_kills``, of processes of the server's own group
    and, in version 2, of groups below it.
    """

    name = "cgroup"

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        super().__init__()
        self.missing: str | None = None
        """Why a number of some kind is not there."""
        self._names: dict[str, str] = {}
        """The group whose limit the latest numbers are about."""
        self._pid = pid
        self._proc = proc
        self._host = self.keep(proc / "vmstat")
        self._membership = self.keep(proc / str(pid) / "cgroup", 65_536)
        self._known: bytes | None = None
        """What it was when the groups were looked up: a process can be moved."""
        self._cpu: list[_Cpu] = []
        self._memory: list[_Memory] = []
        self._roots: list[str] = []
        """Controllers in whose root group the process is."""

    def _find(self) -> None:
        now = self._membership.read()
        if now == self._known:
            return
        self._known = now
        for file in self._files[2:]:
            file.close()
        del self._files[2:]
        self.missing = None
        self._roots = []
        self._cpu = [_Cpu(self, group) for group in self._groups("cpu")]
        self._memory = [_Memory(self, group) for group in self._groups("memory")]

    def _groups(self, controller: str) -> tuple[Group, ...]:
        try:
            found = groups(self._pid, controller, self._proc)
        except StallscopeError as error:
            self.missing = str(error)
            return ()
        if not found:
            self._roots.append(controller)
            self.missing = f"process {self._pid} is in the root cgroup of {controller}"
        return found

    def read(self, clock_ns: int) -> dict[str, float]:
        self._find()
        values = {_OF_ROOT[controller]: 0.0 for controller in self._roots}
        self._names = {}
        self._read_cpu(clock_ns, values)
        self._read_memory(values)
        return values

    def names(self) -> dict[str, str]:
        return dict(self._names)

    def _read_cpu(self, clock_ns: int, values: dict[str, float]) -> None:
        for group in self._cpu:
            limit = group.limit()
            if limit is not None and limit < values.get("cgroup.cpu.limit", float("inf")):
                values["cgroup.cpu.limit"] = limit
                self._names["cgroup.cpu"] = group.name
        for group in self._cpu:
            for key, value in group.throttling(clock_ns).items():
                if value > values.get(key, 0.0) and key.endswith("share"):
                    self._names["cgroup.cpu"] = group.name
                values[key] = max(value, values.get(key, 0.0))

    def _read_memory(self, values: dict[str, float]) -> None:
        left = float("inf")
        for group in self._memory:
            limit, used = group.limit(), group.used()
            if limit is not None and used is not None and limit - used < left:
                left = limit - used
                values["cgroup.memory.limit_bytes"] = limit
                values["cgroup.memory.used_bytes"] = used
                self._names["cgroup.memory"] = group.name
        events = self._memory[0].events if self._memory else self._host
        kills = _numbers(events).get("oom_kill")
        if kills is not None:
            values["cgroup.memory.oom_kills"] = kills
        met = [count for group in self._memory if (count := group.limited()) is not None]
        if met:
            values["cgroup.memory.limited"] = sum(met)


class _Cpu:
    def __init__(self, owner: HostCollector, group: Group) -> None:
        self.name = group.name
        self._stat = owner.keep(f"{group.folder}/cpu.stat", 4096)
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if group.old else ("cpu.max",)
        self._quota = [owner.keep(f"{group.folder}/{name}", 256) for name in names]
        self._period_us = float(_DEFAULT_PERIOD_US)
        self._last: tuple[int, float] | None = None

    def limit(self) -> float | None:
        """Return the quota in CPUs; None: there is none, or it cannot be read."""
        try:
            words = b" ".join(file.read() for file in self._quota).split()
            self._period_us = float(words[1]) or _DEFAULT_PERIOD_US
            quota = float(words[0])
        except (StallscopeError, ValueError, IndexError):
            return None  # "max", and a cpu.cfs_quota_us of -1
        return quota / self._period_us if quota > 0 else None

    def throttling(self, clock_ns: int) -> dict[str, float]:
        found = _numbers(self._stat)
        count = found.get("nr_throttled")
        us = found.get("throttled_usec", found.get("throttled_time", 0.0) / 1000)
        if count is None:
            return {}
        values = {"cgroup.cpu.throttled_us": us}
        if self._last is not None and clock_ns > self._last[0] and count >= self._last[1]:
            part = (count - self._last[1]) * self._period_us * 1000 / (clock_ns - self._last[0])
            values["cgroup.cpu.throttled_share"] = min(1.0, part)
        self._last = (clock_ns, count)
        return values


class _Memory:
    def __init__(self, owner: HostCollector, group: Group) -> None:
        self.name = group.name
        folder = group.folder
        self._old = group.old
        limits = ("memory.limit_in_bytes",) if group.old else ("memory.high", "memory.max")
        self._limits = [owner.keep(f"{folder}/{name}", 256) for name in limits]
        used = "memory.usage_in_bytes" if group.old else "memory.current"
        self._used = owner.keep(f"{folder}/{used}", 256)
        events = "memory.oom_control" if group.old else "memory.events"
        self.events = owner.keep(f"{folder}/{events}", 4096)
        self._failures = owner.keep(f"{folder}/memory.failcnt", 256)
        # Of version 2, memory.events counts those of the groups below as well.
        self._local = owner.keep(f"{folder}/memory.events.local", 4096)

    def limit(self) -> float | None:
        """Return the lowest limit in bytes; None: there is none."""
        found = [value for file in self._limits if (value := _number(file)) is not None]
        return min((value for value in found if value < _UNLIMITED), default=None)

    def used(self) -> float | None:
        return _number(self._used)

    def limited(self) -> float | None:
        if self._old:
            return _number(self._failures)
        events = _numbers(self._local) or _numbers(self.events)
        met = [events[key] for key in ("high", "max") if key in events]
        return sum(met) if met else None


def _number(file: OpenedFile) -> float | None:
    """Return the one number of a file; None: it has none, such as "max"."""
    with contextlib.suppress(StallscopeError, ValueError):
        return float(file.read())
    return None


def _numbers(file: OpenedFile) -> Mapping[str, float]:
    """Return the numbers of a file by their keys; none where it cannot be read."""
    found: dict[str, float] = {}
    with contextlib.suppress(StallscopeError):
        for line in file.read().splitlines():
            key, _, rest = line.partition(b" ")
            with contextlib.suppress(ValueError):
                found[key.decode("ascii", "replace")] = float(rest)
    return found

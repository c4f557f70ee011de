# SPDX-License-Identifier: Apache-2.0
"""What the host did to a server between two moments, such as the begin and the end of a burst.

Numbers have the names that they have in triggers: ``cgroup.cpu.throttled_share``, and
``rate(memory.swapped_in)`` of a counter. What was not read is not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stallscope.base.errors import StallscopeError
from stallscope.base.meanwhile import Meanwhile
from stallscope.collectors.host.collecting import HostCollector
from stallscope.collectors.host.limits import Limits
from stallscope.collectors.host.load import Load
from stallscope.collectors.host.memory import Memory
from stallscope.collectors.host.process import ProcessNumbers
from stallscope.collectors.host.space import Space
from stallscope.collectors.processes import Server
from stallscope.model.samples import Sample

__all__ = ["Measured", "Recent", "rates", "recent"]

GAUGES = frozenset(
    {
        "cgroup.cpu.limit",
        "cgroup.cpu.throttled_share",
        "cgroup.memory.limit_bytes",
        "cgroup.memory.used_bytes",
        "host.cpu.steal",
        "host.cpus",
        "memory.available_bytes",
        "process.swap_bytes",
    }
)
COUNTERS = frozenset(
    {
        "cgroup.memory.limited",
        "cgroup.memory.oom_kills",
        "memory.compaction_stalls",
        "memory.direct_reclaims",
        "memory.swapped_in",
        "memory.swapped_out",
        "process.major_faults",
    }
)


class Recent(NamedTuple):
    """Numbers, and what they are about."""

    values: dict[str, float]
    names: dict[str, str]


class Measured:
    """Measures one process, a server or not, from when this is made until ``values``."""

    def __init__(self, pid: int, server: Server | None) -> None:
        process = ProcessNumbers(pid, threads=False)
        self._collectors: Sequence[HostCollector] = (Limits(pid), Load(), Memory(), process)
        # A disk can be slow to answer.
        self._space = None if server is None else Meanwhile(lambda: _room(server), "space")
        self._collect()

    def end(self) -> Recent:
        """Return the numbers; afterwards it is closed."""
        self._collect()
        for collector in self._collectors:
            collector.close()
        found = recent(self._collectors)
        if self._space is None:
            return found
        room = self._space.result()
        return Recent({**found.values, **room.values}, {**found.names, **room.names})

    def _collect(self) -> None:
        for collector in self._collectors:
            with contextlib.suppress(StallscopeError):
                collector.collect()


def _room(server: Server) -> Recent:
    space = Space(server)
    with contextlib.suppress(StallscopeError):
        space.collect()
    return recent((space,))


def recent(collectors: Iterable[HostCollector]) -> Recent:
    """Return what the latest samples of these collectors say, and the rates between two of them."""
    values: dict[str, float] = {}
    names: dict[str, str] = {}
    for collector in collectors:
        samples = collector.latest
        for sample in samples[-1:]:
            values |= {name: value for name, value in sample.values.items() if _is_gauge(name)}
            names |= collector.names()
        if len(samples) > 1:
            values |= rates(samples[0], samples[1])
    return Recent(values, names)


def _is_gauge(name: str) -> bool:
    return name in GAUGES or name.startswith("space.")


def rates(before: Sample, after: Sample) -> dict[str, float]:
    """Return the growth per second of the counters that both samples have."""
    seconds = (after.clock_ns - before.clock_ns) / 1e9
    return {
        f"rate({name})": (after.values[name] - before.values[name]) / seconds
        for name in COUNTERS & after.values.keys() & before.values.keys()
        if seconds > 0 and after.values[name] >= before.values[name]
    }

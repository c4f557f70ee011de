# SPDX-License-Identifier: Apache-2.0
"""Measure what a live server writes: lines of the probe, with what the kernel and the server count
at the same time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing

from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes, storage
from stallscope.collectors.host import writes as host
from stallscope.collectors.processes import Server
from stallscope.model.storage import StorageLine
from stallscope.model.storagewrites import Measured, class_bytes

__all__ = ["POINTS", "measure"]

POINTS = 60
"""Intervals of the picture over time, at most; none is shorter than a second."""


def measure(
    server: Server,
    seconds: float,
    *,
    force_kernel: bool = False,
    first: Callable[[], None] = lambda: None,
    last: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure for so long, or until the server ends or a signal comes.

    ``first`` and ``last`` are called when counting has begun and when it has ended. Raises:
    StallscopeError where the probe fails.
    """
    options = storage.Options(
        seconds=seconds, interval=max(1.0, seconds / POINTS), force_kernel=force_kernel
    )
    courses: dict[int, list[tuple[float, dict[str, int]]]] = defaultdict(list)
    finals: list[StorageLine] = []
    begun = None
    time_ns = time.time_ns()
    with closing(storage.watch(server.pids, options)) as lines:
        for line in lines:
            courses[line.pid].append((line.seconds, class_bytes(line)))
            if begun is None and len(courses) == len(server.pids):
                begun = host.host_writes(server.pids)
                time_ns = time.time_ns()
                first()
            if line.final:
                finals.append(line)
    if begun is None:
        raise StallscopeError("the probe ended before it counted anything")
    last()
    ended = host.host_writes(server.pids)
    began = _began(server)
    devices = {file.dev for line in finals for file in line.files}
    notes = []
    if server.left_out:
        notes.append(f"{server.left_out} processes beyond the first {len(server.pids)} are missing")
    return Measured(
        name=server.name,
        pid=server.main.pid,
        lines=tuple(finals),
        series=_series(courses),
        first=begun,
        last=ended,
        began=began,
        sources=host.device_sources(server.main.pid, devices),
        time_ns=time_ns,
        notes=tuple(notes),
    )


def _began(server: Server) -> dict[int, int]:
    """Return what the server's processes that began meanwhile have written."""
    try:
        now = processes.find_server(str(server.main.pid), processes.Selector())
    except StallscopeError:
        return {}  # it has ended
    found = {pid: host.process_io(pid) for pid in set(now.pids) - set(server.pids)}
    return {pid: io.write_bytes for pid, io in found.items() if io is not None}


def _series(
    courses: Mapping[int, list[tuple[float, dict[str, int]]]],
) -> tuple[tuple[float, dict[str, int]], ...]:
    """Add up the processes, each of which has a line for each interval until it ends."""
    found = []
    for step in range(max(map(len, courses.values()), default=0)):
        total: dict[str, int] = {}
        seconds = 0.0
        for course in courses.values():
            at, classes = course[min(step, len(course) - 1)]
            seconds = max(seconds, at)
            for name, count in classes.items():
                total[name] = total.get(name, 0) + count
        found.append((seconds, total))
    return tuple(found)

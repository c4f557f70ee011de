# SPDX-License-Identifier: Apache-2.0
"""One measurement of a server's syncs and commits, for stallscope.analyzers.durability: lines of
the probe, CPU time, and file systems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from stallscope.base import mounts
from stallscope.collectors import cputimes, storage
from stallscope.collectors.cputimes import ThreadTime
from stallscope.collectors.processes import Server
from stallscope.model.storage import FileSums, StorageLine

__all__ = ["Collected", "collect", "file_system"]


class Collected(msgspec.Struct, frozen=True):
    """What was seen of the processes of one server. None is unknown."""

    seconds: float
    files: tuple[FileSums, ...]
    cpu_user: float | None
    cpu_system: float | None
    """Seconds of the server."""
    cpu_clients: float
    """Seconds of clients on this host."""
    threads: Mapping[int, ThreadTime]
    """Of the server's threads that were there all the time, meanwhile."""
    cpus: int
    lost: int
    ended: bool
    """A process of the server ended meanwhile."""
    why_not_charged: str | None = None


def collect(
    server: Server,
    options: storage.Options,
    *,
    begun: Callable[[], None],
    meanwhile: Callable[[StorageLine], None],
    over: Callable[[], None],
) -> Collected:
    """Watch until time is up, or a signal. ``begun`` is called when counting has begun,
    ``meanwhile`` at each of the lines that the probe prints, ``over`` when it is over.
    Raises: StallscopeError where the probe fails.
    """
    own = cputimes.cpu_seconds(server.pids)
    clients = cputimes.local_clients(server.pids)
    of_clients = {pid: _both(pid) for pid in clients}
    threads: dict[int, ThreadTime] = {}
    finals: list[StorageLine] = []
    started = False
    # Closed at the end: a probe that still runs is ended.
    lines = storage.watch(server.pids, options)
    try:
        for line in lines:
            if not started:
                started = True
                begun()
                own = cputimes.cpu_seconds(server.pids)
                of_clients = {pid: _both(pid) for pid in clients}
                threads = cputimes.thread_times(server.pids)
            elif not line.final:
                meanwhile(line)
            if line.final:
                finals.append(line)
    finally:
        lines.close()
    now = cputimes.cpu_seconds(server.pids)
    used = sum(max(0.0, _both(pid) - before) for pid, before in of_clients.items())
    since = {
        tid: ThreadTime(time.seconds - threads[tid].seconds, time.turns - threads[tid].turns)
        for tid, time in cputimes.thread_times(server.pids).items()
        if tid in threads
    }
    over()
    return Collected(
        seconds=max((line.seconds for line in finals), default=0.0),
        files=tuple(file for line in finals for file in line.files),
        cpu_user=None if own is None or now is None else max(0.0, now[0] - own[0]),
        cpu_system=None if own is None or now is None else max(0.0, now[1] - own[1]),
        cpu_clients=used,
        threads=since,
        cpus=cputimes.allowed_cpus(server.main.pid),
        lost=sum(count for line in finals for count in line.lost.values()),
        ended=any(line.ended for line in finals),
    )


def _both(pid: int) -> float:
    found = cputimes.cpu_seconds((pid,))
    return 0.0 if found is None else sum(found)


def file_system(pid: int, files: Iterable[FileSums]) -> str | None:
    """Return the kind of the file system that has most of these files, as the process sees it."""
    counts: defaultdict[str, int] = defaultdict(int)
    mountinfo = Path(f"/proc/{pid}/mountinfo")
    for file in files:
        found = mounts.place(file.path, mountinfo) if file.path else None
        if found is not None:
            counts[found.kind] += file.syncs + file.requests
    return max(counts, key=lambda kind: counts[kind], default=None)

# SPDX-License-Identifier: Apache-2.0
"""What the kernel's OOM killer did while a server ran: its log, the counters of the server's
control group, and the counter of the host."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors.host.cgroups import groups
from stallscope.collectors.host.collecting import OpenedFile
from stallscope.collectors.processes import PROC

__all__ = ["OomKills", "count", "logged"]

LOG = Path("/dev/kmsg")
_RECORD = 8192
"""Bytes; the kernel refuses to cut a record (Documentation/ABI/testing/dev-kmsg)."""
_SECONDS = 0.5
"""The longest time for reading the log; a full one of 16 MB takes 0.2 s."""
_NAME_LENGTH = 120

# mm/oom_kill.c, dump_oom_summary(), from Linux 5.0. The name of the process is its own choice: what
# comes after it is read from the end.
_KILLED = re.compile(
    r"oom-kill:constraint=CONSTRAINT_(?P<why>[A-Z_]+),.*?"
    r"(?:,oom_memcg=(?P<group>/.*?)|,global_oom),task_memcg=/.*,pid=(?P<pid>\d+),uid=\d+"
)


class OomKills:
    """Made while the server runs, and asked after its end."""

    def __init__(self, pid: int, *, proc: Path = PROC, log: Path = LOG) -> None:
        self._pid = pid
        self._log = -1
        with contextlib.suppress(OSError):
            self._log = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)
        self._groups: tuple[tuple[str, OpenedFile], ...] = ()
        with contextlib.suppress(StallscopeError):
            self._groups = tuple(
                (group.name, OpenedFile(f"{group.folder}/{name}", 4096))
                for group in groups(pid, "memory", proc)
                for name in ("memory.oom_control" if group.old else "memory.events",)
            )
        self._host = OpenedFile(proc / "vmstat")
        self._before = self._counts()

    def of_server(self) -> str | None:
        """Return in words that the OOM killer ended the server, and by whose limit; "": it did not;
        None: the kernel does not say so surely."""
        for record in self._records():
            words = logged(record, self._pid)
            if words is not None:
                return words
        before, now = self._before, self._counts()
        for (name, _), first, last in zip(self._groups, before[:-1], now[:-1], strict=True):
            if first is not None and last is not None and last > first:
                return (
                    "killed by the OOM killer, as it seems: it ended a process of cgroup"
                    f" {_shown(name)}"
                )
        return "" if before[-1] is not None and before[-1] == now[-1] else None

    def close(self) -> None:
        """Close its files."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        for _, file in self._groups:
            file.close()
        self._host.close()

    def _counts(self) -> tuple[int | None, ...]:
        """Return the kills in each group, the nearest first, and of the host."""
        return *(count(file) for _, file in self._groups), count(self._host)

    def _records(self) -> Iterable[str]:
        """Yield what the kernel itself has logged since the server was first seen."""
        until = time.monotonic() + _SECONDS
        while self._log >= 0 and time.monotonic() < until:
            try:
                data = os.read(self._log, _RECORD)
            except BrokenPipeError:
                continue  # records that nobody read have been overwritten
            except OSError:
                return
            head, _, text = data.partition(b";")
            priority = head.partition(b",")[0]
            # Programs write to the log too, and the kernel marks their records: kernel/printk.
            if priority.isdigit() and int(priority) < 8:
                yield text.partition(b"\n")[0].decode("utf-8", "backslashreplace")


def logged(record: str, pid: int) -> str | None:
    """Return what a record of the kernel's log says of the end of a process; None: nothing."""
    found = _KILLED.fullmatch(record)
    if found is None or int(found["pid"]) != pid:
        return None
    if found["group"] is not None:
        where = f"memory limit of cgroup {_shown(found['group'])}"
    elif found["why"] == "NONE":
        where = "the host had no memory left"
    else:
        where = "no memory left on the NUMA nodes that it may use"
    return f"killed by the OOM killer ({where})"


def count(file: OpenedFile) -> int | None:
    """Return ``oom_kill`` of a file of the kernel; None where it has no such line."""
    with contextlib.suppress(StallscopeError, ValueError):
        for line in file.read().splitlines():
            key, _, rest = line.partition(b" ")
            if key == b"oom_kill":
                return int(rest)
    return None


def _shown(name: str) -> str:
    return one_line(name, _NAME_LENGTH)

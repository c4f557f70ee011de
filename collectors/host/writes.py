# SPDX-License-Identifier: Apache-2.0
"""What processes and block devices have written so far: /proc/PID/io and /proc/diskstats."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.host.collecting import OpenedFile
from stallscope.collectors.host.disks import SECTOR, mounted_from
from stallscope.model.storage import ProcessIo
from stallscope.model.storagewrites import DiskRow, HostWrites

__all__ = ["device_sources", "host_writes", "process_io"]

MAX_PROCESSES = 100_000
MAX_DISKS = 4096
_MAX_DISKSTATS = 1 << 20
_FIELDS = ("wchar", "syscw", "write_bytes", "cancelled_write_bytes")


def host_writes(pids: Collection[int], proc: Path = processes.PROC) -> HostWrites:
    """Read all of it once. A process of ``pids`` that has ended, or may not be read, is left
    out."""
    io = {pid: found for pid in pids if (found := process_io(pid, proc)) is not None}
    return HostWrites(io, _others(pids, proc), _disks(proc))


def process_io(pid: int, proc: Path = processes.PROC) -> ProcessIo | None:
    """Return the totals of a process since its start, with those of its children that ended and
    were waited for; None where they cannot be read."""
    try:
        text = _read(proc / str(pid) / "io", 4096)
    except StallscopeError:
        return None
    found: dict[str, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(b":")
        if rest.strip().isdigit():
            found[key.decode("ascii", "replace")] = int(rest)
    if not all(name in found for name in _FIELDS):
        return None
    return ProcessIo(**{name: found[name] for name in _FIELDS})


def _others(pids: Collection[int], proc: Path) -> dict[tuple[int, int], int] | None:
    """Return write_bytes of all other processes, kernel threads among them."""
    try:
        names = [name for name in os.listdir(proc) if name.isascii() and name.isdigit()]
    except OSError:
        return None
    found: dict[tuple[int, int], int] = {}
    for pid in map(int, names[:MAX_PROCESSES]):
        if pid in pids:
            continue
        info, io = processes.read(pid, proc), process_io(pid, proc)
        if info is None:
            continue
        if io is None:
            if processes.read(pid, proc) is None:
                continue  # it has just ended
            return None
        found[pid, info.start_time] = io.write_bytes
    return found


def _disks(proc: Path) -> dict[str, DiskRow]:
    found: dict[str, DiskRow] = {}
    try:
        text = _read(proc / "diskstats", _MAX_DISKSTATS)
    except StallscopeError:
        return found
    for line in text.splitlines()[:MAX_DISKS]:
        words = line.split()
        if len(words) < 14 or not all(word.isdigit() for word in (*words[:2], *words[3:14])):
            continue
        found[f"{int(words[0])}:{int(words[1])}"] = DiskRow(
            words[2].decode("utf-8", "backslashreplace"),
            write_bytes=int(words[9]) * SECTOR,
            writes=int(words[7]),
            flushes=int(words[18]) if len(words) > 18 and words[18].isdigit() else None,
        )
    return found


def device_sources(pid: int, devices: Iterable[str], proc: Path = processes.PROC) -> dict[str, str]:
    """Return the block device that a file system without one of its own (btrfs) is mounted from,
    by the number of the file system: ``{"0:35": "vda"}``."""
    found = {}
    for device in devices:
        major, _, minor = device.partition(":")
        if major == "0" and minor.isdigit():
            source = mounted_from(proc / str(pid) / "mountinfo", (0, int(minor)))
            if source is not None:
                found[device] = source
    return found


def _read(path: Path, limit: int) -> bytes:
    file = OpenedFile(path, limit)
    try:
        return file.read()
    finally:
        file.close()

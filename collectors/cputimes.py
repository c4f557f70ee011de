# SPDX-License-Identifier: Apache-2.0
"""CPU time of processes, and of the programs on this host that are clients of a server."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import struct
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["ThreadTime", "allowed_cpus", "cpu_seconds", "local_clients", "thread_times"]

_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_PROCESSES = 20_000
_MAX_DESCRIPTORS = 100_000
_MAX_TABLE = 32 << 20
_MAX_THREADS = 65_536
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED = "01"  # include/net/tcp_states.h

# include/uapi/linux/sock_diag.h, unix_diag.h, netlink.h
_SOCK_DIAG, _BY_FAMILY, _DUMP, _REQUEST_FLAG = 4, 20, 0x300, 1
_SHOW_PEER, _PEER, _DONE, _ERROR = 4, 2, 3, 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_ANSWER = struct.Struct("=BBBBIII")
_TIMEOUT = 1.0


def cpu_seconds(pids: Iterable[int]) -> tuple[float, float] | None:
    """Return user and system time of processes; None where one cannot be read."""
    user = system = 0
    for pid in pids:
        try:
            # The name in parentheses may itself hold blanks and parentheses.
            text = Path(f"/proc/{pid}/stat").read_bytes()[:4096]
            fields = text.rpartition(b")")[2].split()
            user += int(fields[11])
            system += int(fields[12])
        except (OSError, ValueError, IndexError):
            return None
    return user / _TICKS, system / _TICKS


class ThreadTime(NamedTuple):
    """What a thread had of CPUs since it began."""

    seconds: float
    turns: int
    """How often it got one."""


def thread_times(pids: Iterable[int]) -> dict[int, ThreadTime]:
    """Return what the threads of processes had, by thread. Those that cannot be read are left out,
    and on a kernel without CONFIG_SCHED_INFO all are."""
    times = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in itertools.islice(os.scandir(f"/proc/{pid}/task"), _MAX_THREADS):
                # Documentation/scheduler/sched-stats.rst
                with contextlib.suppress(OSError, ValueError):
                    ran, _, turns = Path(task.path, "schedstat").read_bytes()[:200].split()
                    if int(ran):
                        times[int(task.name)] = ThreadTime(int(ran) / 1e9, int(turns))
    return times


def allowed_cpus(pid: int) -> int:
    """Return how many CPUs a process may run on."""
    try:
        return max(1, len(os.sched_getaffinity(pid)))
    except OSError:
        return os.cpu_count() or 1


def local_clients(pids: Collection[int]) -> set[int]:
    """Return the processes of this host that have connections to these ones, this one left out.

    What cannot be seen, such as another user's descriptors without root, is not among them.
    """
    own = {inode for pid in pids for inode in _sockets(pid)}
    peers = _unix_peers(own) | {peer for pid in pids for peer in _tcp_peers(pid, own)}
    peers -= own
    found: set[int] = set()
    if not peers:
        return found
    for name in os.listdir("/proc")[:_MAX_PROCESSES]:
        if not name.isdigit() or int(name) in pids or int(name) == os.getpid():
            continue
        if not peers.isdisjoint(_sockets(int(name))):
            found.add(int(name))
    return found


def _sockets(pid: int) -> set[int]:
    found: set[int] = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder)[:_MAX_DESCRIPTORS]:
            with contextlib.suppress(OSError):
                match = _SOCKET.fullmatch(os.readlink(f"{folder}/{name}"))
                if match is not None:
                    found.add(int(match[1]))
    return found


def _unix_peers(own: Collection[int]) -> set[int]:
    """Ask the kernel for the other ends of Unix sockets."""
    peers: set[int] = set()
    with contextlib.suppress(OSError, struct.error):
        end = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
        with end:
            end.settimeout(_TIMEOUT)
            size = _HEADER.size + _REQUEST.size
            head = _HEADER.pack(size, _BY_FAMILY, _DUMP | _REQUEST_FLAG, 1, 0)
            every = 0xFFFFFFFF
            end.send(head + _REQUEST.pack(socket.AF_UNIX, 0, 0, every, 0, _SHOW_PEER, 0, 0))
            while _take_peers(end.recv(1 << 18), own, peers):
                pass
    return peers


def _take_peers(data: bytes, own: Collection[int], peers: set[int]) -> bool:
    """Read one answer of the kernel; return whether more follows."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if kind in (_DONE, _ERROR) or size < _HEADER.size:
            return False
        inode = _ANSWER.unpack_from(data, at + _HEADER.size)[4]
        attribute = at + _HEADER.size + _ANSWER.size
        while inode in own and attribute + 8 <= min(at + size, len(data)):
            length, name, value = struct.unpack_from("=HHI", data, attribute)
            if name == _PEER:
                peers.add(value)
            attribute += max(4, (length + 3) & ~3)
        at += (size + 3) & ~3
    return bool(data)


def _tcp_peers(pid: int, own: Collection[int]) -> set[int]:
    """Return the inodes at the other ends of a process's connections within this host."""
    ends: dict[tuple[str, str], int] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/net/{name}", "rb") as file:
                text = file.read(_MAX_TABLE).decode("ascii", "replace")
            for line in text.splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _ESTABLISHED:
                    ends[fields[1], fields[2]] = int(fields[9])
    return {
        ends[remote, local]
        for (local, remote), inode in ends.items()
        if inode in own and (remote, local) in ends
    }

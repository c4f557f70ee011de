# SPDX-License-Identifier: Apache-2.0
"""How a server's process ended: in order, by a signal, or unknown.

wait(2) answers only the parent. From Linux 6.15, everyone who holds a pidfd of a process can ask
for its exit status once the parent has waited for it (ioctl PIDFD_GET_INFO, linux/pidfd.h). On
other kernels the socket says something: a server removes it when it shuts down. Of SIGKILL the
kernel's log and counters say whether the OOM killer sent it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stallscope.collectors.host.oomkills import OomKills
from stallscope.collectors.paths import asking
from stallscope.collectors.processes import PROC

__all__ = ["Ending", "Life", "exit_status", "sockets_there"]

_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info) with the 64 bytes of its first version."""
_INFO = struct.Struct("=QQ11Ii")
"""mask, cgroupid, eleven ids, exit_code."""
_INFO_EXIT = 1 << 3
Identity = tuple[int, int, int]
"""Of a socket: one that another process has made at the same path differs."""
_BY_WHOM = ": by somebody, or by the kernel when memory ran out"
_NOT_BY_KERNEL = ": by somebody, for the OOM killer ended no process meanwhile"
_EXIT_CODE_OF_STAT = 51 - 2
"""Its place among the fields of /proc/PID/stat after the name."""


def exit_status(descriptor: int, pid: int) -> int | None:
    """Return the exit code of the process of a pidfd, or its signal as a negative number; None: it
    is not known."""
    given = _INFO.pack(_INFO_EXIT, *[0] * 13)
    try:
        answer = fcntl.ioctl(descriptor, _GET_INFO, given)
    except OSError:
        answer = given[:0]
    if answer:
        mask, *_, status = _INFO.unpack(answer)
        if mask & _INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    return _of_zombie(pid)


def _of_zombie(pid: int) -> int | None:
    """Return the exit status that /proc shows while the parent has not waited: with the right to
    read the process, otherwise as 0."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        status = int(fields[_EXIT_CODE_OF_STAT])
        return os.waitstatus_to_exitcode(status) if fields[0] == "Z" and status else None
    except (OSError, ValueError, IndexError):
        return None


def sockets_there(paths: Iterable[str]) -> dict[str, Identity]:
    """Return the sockets of a server that are in this process's file system, up to the first of
    which the disk does not answer: a server can have many."""
    found = {}
    with contextlib.suppress(asking.SilentDiskError):
        for path in paths:
            known = _socket(path)
            if known is not None:
                found[path] = known
    return found


def _socket(path: str) -> Identity | None:
    try:
        found = asking.status(path)
    except asking.SilentDiskError:
        raise
    except OSError:
        return None
    known = found.st_dev, found.st_ino, found.st_mtime_ns
    return known if stat.S_ISSOCK(found.st_mode) else None


class Ending(NamedTuple):
    """How a server's process ended."""

    words: str
    """Empty where nothing is known."""
    clean: bool | None
    """Whether it shut down in order; None: it is not known."""


class Life:
    """What is known of a server's process while it runs, to say afterwards how it ended."""

    def __init__(self, pid: int, sockets: Iterable[str]) -> None:
        self._pid = pid
        self._sockets = sockets_there(sockets)
        self._kills = OomKills(pid)

    def listens(self, sockets: Iterable[str]) -> None:
        """Note the sockets that it has now."""
        self._sockets = sockets_there(sockets)

    def ending(self, descriptor: int) -> Ending:
        """Return how it ended. ``descriptor``: its pidfd."""
        return _ending(exit_status(descriptor, self._pid), self._sockets, self._kills.of_server())

    def close(self) -> None:
        """Close its files."""
        self._kills.close()


def _ending(status: int | None, sockets: Mapping[str, Identity], killed: str | None) -> Ending:
    """``killed``: OomKills.of_server()."""
    if status is None:
        return Ending(killed, clean=False) if killed else _by_socket(sockets)
    if status >= 0:
        clean = status == 0
        return Ending(
            "it shut down, exit code 0" if clean else f"it failed, exit code {status}", clean
        )
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    if -status == signal.SIGKILL:
        name += _BY_WHOM if killed is None else _NOT_BY_KERNEL
        return Ending(killed or f"killed by {name}", clean=False)
    return Ending(f"killed by {name}", clean=False)


def _by_socket(sockets: Mapping[str, Identity]) -> Ending:
    try:
        now = {path: _socket(path) for path in sockets}
    except asking.SilentDiskError as error:
        return Ending(f"how it ended is not known: {error.filename}: {error.strerror}", None)
    left = [path for path, known in sockets.items() if now[path] == known]
    if left:
        words = f"it did not shut down in order, for its socket {left[0]} is still there"
        return Ending(words, clean=False)
    if sockets and not any(now.values()):
        return Ending("it removed its socket, as a shutdown does", clean=True)
    return Ending("", None)  # the next process may have replaced it

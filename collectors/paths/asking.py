# SPDX-License-Identifier: Apache-2.0
"""Ask a disk that may never answer: each function returns within its deadline.

All raise OSError as the calls that they are named after, and SilentDiskError, which is one, where
the disk does not answer. The process that waits for that disk is left behind; the same is not asked
again before it has ended.
"""

from __future__ import annotations

import errno
import marshal
import os
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from stallscope.base.package import module_command
from stallscope.collectors.paths import child

__all__ = [
    "PATIENCE_SECONDS",
    "SILENT",
    "FollowedFile",
    "SilentDiskError",
    "close",
    "connected",
    "exists",
    "folder",
    "geometry",
    "inside",
    "is_folder",
    "is_held",
    "is_same",
    "largest",
    "may",
    "names",
    "read",
    "read_inside",
    "real",
    "space",
    "status",
    "unlink",
]

PATIENCE_SECONDS = 2.0
"""For one request: a disk that is busy answers later than one that is idle."""
CONNECT_SECONDS = 0.8
"""For a socket, of which the kernel knows all while it is used. It is shorter than the deadline of
a login, which then says why."""
SILENT = "its disk does not answer"
MAX_LEFT = 16
"""Processes that wait for disks; then nothing more is asked."""
_START_SECONDS = 20.0
"""For its start, and for an answer of one that gets no CPU."""
_STAT = 1024
_MAX_ANSWER = 256 << 20
_LOST = "the process that asks its disk has ended"

_Key = tuple[str, tuple[object, ...]]
_Name = str | os.PathLike[str]


class SilentDiskError(TimeoutError):
    """A disk did not answer."""

    def __init__(self, path: str, why: str = SILENT) -> None:
        super().__init__(errno.ETIMEDOUT, why, path)


def status(path: _Name, *, follow: bool = True) -> os.stat_result:
    return os.stat_result(_ask("status", _absolute(path), follow))


def exists(path: _Name) -> bool:
    """Return whether there is something. Raises: SilentDiskError."""
    return _mode(path) is not None


def is_folder(path: _Name) -> bool:
    """Return whether it is a folder. Raises: SilentDiskError."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: _Name) -> int | None:
    try:
        return status(path).st_mode
    except SilentDiskError:
        raise
    except OSError:
        return None


def is_same(one: _Name, other: _Name) -> bool:
    """Return whether two paths lead to one file."""
    return os.path.samestat(status(one), status(other))


def is_held(path: _Name) -> bool:
    """Return whether a process holds the lock on a folder."""
    return bool(_ask("is_held", _absolute(path)))


def may(path: _Name, mode: int) -> bool:
    """As access(2). Raises: SilentDiskError."""
    return bool(_ask("may", _absolute(path), mode))


def real(path: _Name) -> str:
    """Return a path without links: all of it exists."""
    return str(_ask("real", _absolute(path)))


def unlink(path: _Name) -> None:
    """Remove a file."""
    _ask("unlink", _absolute(path))


def names(path: _Name, limit: int) -> list[str]:
    """Return at most ``limit`` names of a folder."""
    return list(_ask("names", _absolute(path), limit))


def read(path: _Name, limit: int, *, offset: int = 0) -> tuple[bytes, int]:
    """Return bytes of a regular file, and its mode."""
    data, mode = _ask("read", _absolute(path), offset, limit, True)
    return data, mode


def inside(root: str, path: str) -> str:
    """Return a path below ``root``, with the links that are there as they are meant there."""
    return str(_ask("inside", root, path))


def read_inside(root: str, path: str, limit: int) -> bytes:
    """Return bytes of a regular file below ``root``, found as ``inside`` finds it."""
    return bytes(_ask("read_inside", root, path, limit))


def space(path: _Name) -> os.statvfs_result:
    return os.statvfs_result(_ask("space", _absolute(path)))


def geometry(path: _Name) -> bytes | None:
    """Return what XFS says of the file system of a folder; None where it says nothing."""
    found: bytes | None = _ask("geometry", _absolute(path))
    return found


def largest(path: _Name) -> tuple[str, bytes | None, list[tuple[int, int]]]:
    """Return the name and the flags of the largest file of a folder, or of the folder without one,
    and the size and the blocks of each file."""
    name, flags, sizes = _ask("largest", _absolute(path))
    return name, flags, sizes


def folder(path: _Name) -> int:
    """Return a descriptor of a folder, for paths alone (O_PATH)."""
    return _descriptor("folder", _absolute(path), PATIENCE_SECONDS)


def connected(path: _Name) -> socket.socket:
    """Return a socket that is connected to the one at this path, and does not block."""
    return socket.socket(fileno=_descriptor("connected", _absolute(path), CONNECT_SECONDS))


def close() -> None:
    """End the process that is kept for the next question."""
    _processes.close()


class FollowedFile:
    """A regular file that stays open, in a process of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._child: _Child | None = None

    @property
    def is_open(self) -> bool:
        """Return whether there is a file to read: a disk that is silent closes it."""
        return self._child is not None

    def open(self) -> os.stat_result:
        """Open what is at the path now; the file from before is closed."""
        return os.stat_result(self._ask("follow", self.path))

    def more(self, offset: int, limit: int, most: int) -> tuple[int, bytes]:
        """Return from where on which bytes were read: from the beginning where the file has become
        shorter, the last ones where more than ``most`` are left."""
        begin, data = self._ask("more", offset, limit, most)
        return begin, data

    def close(self) -> None:
        """Close the file."""
        if self._child is not None:
            _processes.put(self._child, reuse=False)
        self._child = None

    def _ask(self, name: str, *arguments: object) -> Any:
        key = ("follow", (self.path,))
        asked, self._child = self._child, None
        if asked is None:
            asked = _processes.take(key, fresh=True)
        try:
            (code, value), _ = _processes.ask(asked, (name, arguments), PATIENCE_SECONDS, key)
        except _LostError as error:
            raise OSError(errno.EIO, _LOST, self.path) from error
        self._child = asked
        if code:
            self.close()
            raise OSError(code, value, self.path)
        return value


class _LostError(Exception):
    """The process has ended."""


class _Child:
    """A process that asks for this one."""

    def __init__(self) -> None:
        """Start it. Raises: OSError."""
        (program, *rest), environment = module_command(child.__name__)
        self._end, other = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [program, "-S", *rest],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._end.close()
            raise
        finally:
            other.close()
        self._starts = True

    def ask(self, request: Any, seconds: float) -> tuple[Any, int]:
        """Return its answer, and the descriptor that came with it, else -1.

        Raises: TimeoutError, _LostError.
        """
        data = marshal.dumps(request)
        try:
            if self._starts:
                self._receive(_START_SECONDS)
                self._starts = False
            self._end.settimeout(seconds)
            self._end.sendall(child.HEAD.pack(len(data)) + data)
            return self._receive(seconds)
        except TimeoutError:
            raise
        except (OSError, EOFError, ValueError) as error:
            raise _LostError from error

    def _receive(self, seconds: float) -> tuple[Any, int]:
        begun = time.monotonic()
        deadline = begun + seconds
        descriptors: list[int] = []
        data = b""
        size = child.HEAD.size
        try:
            while len(data) < size:
                self._end.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    part, more, _, _ = socket.recv_fds(self._end, min(size - len(data), 1 << 20), 1)
                except TimeoutError:
                    deadline = time.monotonic() + seconds
                    if deadline < begun + _START_SECONDS and self._waits_for_a_cpu():
                        continue
                    raise
                for descriptor in more:
                    os.set_inheritable(descriptor, False)
                descriptors += more
                if not part:
                    raise EOFError
                data += part
                if len(data) == size == child.HEAD.size:
                    size += min(_MAX_ANSWER, *child.HEAD.unpack(data))
            answer = marshal.loads(data[child.HEAD.size :])  # noqa: S302 - of our own process
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return answer, descriptors[0] if descriptors else -1

    def _waits_for_a_cpu(self) -> bool:
        """Return whether no disk keeps it: on a host that is too busy, nobody answers."""
        try:
            with open(f"/proc/{self.process.pid}/stat", "rb") as file:
                return file.read(_STAT).rpartition(b")")[2].split()[:1] == [b"R"]
        except OSError:
            return False

    def close(self) -> None:
        """Let it end: it does when it has its answer."""
        self._end.close()


class _Processes:
    """One process at a time is kept for the next request; threads do not wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._ending: list[subprocess.Popen[bytes]] = []
        self._left: list[tuple[_Key, subprocess.Popen[bytes]]] = []
        os.register_at_fork(after_in_child=self._forget)

    def take(self, key: _Key, *, fresh: bool = False) -> _Child:
        """Return a process to ask. Raises: OSError, SilentDiskError where it need not be asked."""
        with self._lock:
            self._ending = [one for one in self._ending if one.poll() is None]
            self._left = [(one, process) for one, process in self._left if process.poll() is None]
            if any(key == one for one, _ in self._left):
                raise SilentDiskError(_path(key))
            if len(self._left) >= MAX_LEFT:
                raise SilentDiskError(_path(key), f"{MAX_LEFT} disks do not answer")
            if self._idle and not fresh:
                return self._idle.pop()
        return _Child()

    def ask(self, one: _Child, request: _Key, seconds: float, key: _Key) -> tuple[Any, int]:
        """Return an answer and its descriptor. Raises: SilentDiskError, _LostError."""
        try:
            return one.ask(request, seconds)
        except TimeoutError:
            one.process.kill()
            one.close()
            with self._lock:
                self._left.append((key, one.process))
            raise SilentDiskError(_path(key)) from None
        except BaseException:
            self.put(one, reuse=False)
            raise

    def put(self, one: _Child, *, reuse: bool = True) -> None:
        """Take a process back."""
        with self._lock:
            if reuse and not self._idle:
                self._idle.append(one)
                return
            one.close()
            self._ending.append(one.process)

    def close(self) -> None:
        """End what is kept."""
        with self._lock:
            ending, self._idle = self._idle, []
        for one in ending:
            one.close()
            one.process.wait(PATIENCE_SECONDS)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._idle, self._ending, self._left = [], [], []


_processes = _Processes()


def _path(key: _Key) -> str:
    return str(key[1][0])


def _asked(name: str, arguments: tuple[object, ...], seconds: float) -> tuple[Any, int]:
    key = (name, arguments)
    for last in (False, True):
        one = _processes.take(key, fresh=last)
        try:
            answer = _processes.ask(one, key, seconds, key)
        except _LostError as error:
            if last:
                raise OSError(errno.EIO, _LOST, _path(key)) from error
            continue
        _processes.put(one)
        return answer
    raise AssertionError("the last try returns or raises")


def _ask(name: str, *arguments: object) -> Any:
    answer, _ = _asked(name, arguments, PATIENCE_SECONDS)
    return _value(answer, str(arguments[0]))


def _descriptor(name: str, path: str, seconds: float) -> int:
    answer, descriptor = _asked(name, (path,), seconds)
    _value(answer, path)
    if descriptor < 0:
        raise OSError(errno.EIO, "no descriptor came", path)
    return descriptor


def _value(answer: Any, path: str) -> Any:
    code, value = answer
    if code:
        raise OSError(code, value, path)
    return value


def _absolute(path: _Name) -> str:
    """Return a path from the root: the process that asks is in another folder."""
    given = os.fspath(path)
    return given if given.startswith("/") else str(Path.cwd() / given)

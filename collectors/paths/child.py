# SPDX-License-Identifier: Apache-2.0
"""The process that asks disks. It imports nothing of ours, so that it starts in a few milliseconds.

Standard input is a socket: of each request and of each answer the length comes first.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import select
import stat
import struct
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["HEAD", "main"]

HEAD = struct.Struct("=I")
IDLE_SECONDS = 10.0
MAX_LINKS = 40
"""As many as the kernel follows."""
_SOCKET = 0
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Opening a pipe would wait for its writer, and a terminal could become our controlling one."""
_LONGEST_SOCKET = 107
"""sun_path of unix(7), without its last zero."""

# include/uapi/linux/fs.h
_FS_IOC_GETFLAGS = 0x80086601
# fs/xfs/libxfs/xfs_fs.h: the first version of the structure has all that is needed here.
_XFS_IOC_FSGEOMETRY_V1 = 0x80705864
_XFS_GEOMETRY_BYTES = 112
_MAX_ENTRIES = 256

_Status = tuple[float, ...]
"""The fields of os.stat_result, in its order."""


class _Passed(Exception):
    """A descriptor that is the answer."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor


def _status(path: str, follow: bool) -> _Status:
    return _fields(os.stat(path, follow_symlinks=follow))


def _fields(found: os.stat_result) -> _Status:
    times = (found.st_atime, found.st_mtime, found.st_ctime)
    return (*found, *times, found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)


def _may(path: str, mode: int) -> bool:
    return os.access(path, mode)


def _unlink(path: str) -> None:
    os.unlink(path)


def _real(path: str) -> str:
    return os.path.realpath(path, strict=True)


def _names(path: str, limit: int) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry, _ in zip(entries, range(limit), strict=False)]


def _opened(path: str, flags: int = 0) -> int:
    """Open a regular file."""
    descriptor = os.open(path, _READ | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return descriptor


def _read(path: str, offset: int, limit: int, follow: bool) -> tuple[bytes, int]:
    """Return bytes of a regular file, and its mode."""
    with os.fdopen(_opened(path, 0 if follow else os.O_NOFOLLOW), "rb") as file:
        file.seek(offset)
        return file.read(limit), os.fstat(file.fileno()).st_mode


def _inside(root: str, path: str) -> str:
    """Return a path below ``root``, with the links that are there as they are meant there."""
    todo = [part for part in reversed(path.split("/")) if part]
    found: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part == ".":
            continue
        if part == "..":
            del found[-1:]
            continue
        try:
            target = os.readlink("/".join((root, *found, part)))
        except OSError:
            found.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            return root + path
        if target.startswith("/"):
            found.clear()
        todo += [part for part in reversed(target.split("/")) if part]
    return "/".join((root, *found))


def _read_inside(root: str, path: str, limit: int) -> bytes:
    return _read(_inside(root, path), 0, limit, False)[0]


def _space(path: str) -> tuple[int, ...]:
    return tuple(os.statvfs(path))


def _geometry(path: str) -> bytes | None:
    return _asked(path, _XFS_IOC_FSGEOMETRY_V1, _XFS_GEOMETRY_BYTES)


def _largest(folder: str) -> tuple[str, bytes | None, list[tuple[int, int]]]:
    """Return the name of the largest file of a folder, or of the folder without one, its flags,
    and the size and blocks of each file."""
    largest: tuple[int, str] | None = None
    sizes = []
    for name, status in _files(folder):
        if largest is None or status.st_size > largest[0]:
            largest = (status.st_size, name)
        sizes.append((status.st_size, status.st_blocks))
    path = folder if largest is None else os.path.join(folder, largest[1])
    return os.path.basename(path), _asked(path, _FS_IOC_GETFLAGS, 8), sizes


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(folder) as entries:
            for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield entry.name, status
    except OSError:
        return


def _asked(path: str, request: int, size: int) -> bytes | None:
    """Return what an ioctl(2) on a regular file or a directory writes."""
    try:
        number = os.open(path, _READ | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return None
        return fcntl.ioctl(number, request, bytes(size))
    except OSError:
        return None
    finally:
        os.close(number)


def _folder(path: str) -> None:
    raise _Passed(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))


def _is_held(path: str) -> bool:
    """Return whether a process holds the lock on a folder."""
    descriptor = os.open(path, _READ | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _connected(path: str) -> None:
    """Connect to a socket: finding it, and the right to write to it, is asked of its disk."""
    import socket

    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.setblocking(False)  # nor for a server that accepts no more
    try:
        if len(os.fsencode(path)) <= _LONGEST_SOCKET:
            end.connect(path)
        else:
            folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            end.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
            os.close(folder)
    except BaseException:
        end.close()
        raise
    raise _Passed(end.detach())


class _Log:
    """A file that stays open between requests."""

    descriptor = -1


def _follow(path: str) -> _Status:
    descriptor = _opened(path)
    if _Log.descriptor >= 0:
        os.close(_Log.descriptor)
    _Log.descriptor = descriptor
    return _fields(os.fstat(descriptor))


def _more(offset: int, limit: int, most: int) -> tuple[int, bytes]:
    size = os.fstat(_Log.descriptor).st_size
    if size < offset:
        offset = 0
    if size - offset > most:
        offset = size - limit
    return offset, os.pread(_Log.descriptor, limit, offset)


_CALLS: dict[str, Callable[..., object]] = {
    "connected": _connected,
    "folder": _folder,
    "follow": _follow,
    "geometry": _geometry,
    "inside": _inside,
    "is_held": _is_held,
    "largest": _largest,
    "may": _may,
    "more": _more,
    "names": _names,
    "read": _read,
    "read_inside": _read_inside,
    "real": _real,
    "space": _space,
    "status": _status,
    "unlink": _unlink,
}


def main() -> None:
    """Answer until the other end is closed, or nothing more is asked."""
    _send(None)
    while True:
        if _Log.descriptor < 0 and not select.select([_SOCKET], [], [], IDLE_SECONDS)[0]:
            return  # another one is started quickly
        head = _receive(HEAD.size)
        name, arguments = marshal.loads(_receive(*HEAD.unpack(head)))  # noqa: S302 - of our parent
        try:
            _send((0, _CALLS[name](*arguments)))
        except _Passed as passed:
            _send((0, None), passed.descriptor)
        except OSError as error:
            _send((error.errno or errno.EIO, error.strerror or str(error)))
        except (OverflowError, ValueError) as error:
            _send((errno.EINVAL, str(error)))


def _receive(size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(_SOCKET, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def _send(answer: Any, descriptor: int = -1) -> None:
    data = marshal.dumps(answer)
    data = HEAD.pack(len(data)) + data
    if descriptor >= 0:
        import socket

        with socket.socket(fileno=os.dup(_SOCKET)) as end:
            socket.send_fds(end, [data], [descriptor])
        os.close(descriptor)
        return
    while data:
        data = data[os.write(_SOCKET, data) :]


if __name__ == "__main__":
    main()

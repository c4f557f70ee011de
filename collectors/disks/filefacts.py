# SPDX-License-Identifier: Apache-2.0
"""What file systems say of themselves and of files, by calls that read nothing from a device."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterator

import msgspec

__all__ = ["Attributes", "Geometry", "Space", "attributes", "geometry", "space"]

# include/uapi/linux/fs.h
_FS_IOC_GETFLAGS = 0x80086601
_JOURNAL_DATA = 0x4000
_EXTENTS = 0x80000
_NOCOW = 0x800000
# fs/xfs/libxfs/xfs_fs.h: the first version of the structure has all that is needed here.
_XFS_IOC_FSGEOMETRY_V1 = 0x80705864
_XFS_GEOMETRY = struct.Struct("=8I4Q16s7I4x")

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_ENTRIES = 256


class Space(msgspec.Struct, frozen=True):
    """Of statvfs(3)."""

    block_bytes: int
    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


class Geometry(msgspec.Struct, frozen=True):
    """Of XFS, in bytes."""

    log_bytes: int
    stripe_bytes: int
    width_bytes: int


class Attributes(msgspec.Struct, frozen=True):
    """Of the files in a directory; None: not known."""

    file: str | None = None
    nocow: bool | None = None
    extents: bool | None = None
    journaled: bool | None = None
    cluster_bytes: int | None = None


def space(path: str) -> Space:
    """Return the space of a file system. Raises: OSError."""
    found = os.statvfs(path)
    return Space(
        found.f_frsize or found.f_bsize,
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_files,
        found.f_favail,
    )


def geometry(folder: str) -> Geometry | None:
    """Return the geometry of the XFS that a folder is on; None where it says none."""
    data = _asked(folder, _XFS_IOC_FSGEOMETRY_V1, _XFS_GEOMETRY.size)
    if data is None:
        return None
    values = _XFS_GEOMETRY.unpack(data)
    block, log_blocks, unit, width = values[0], values[4], values[13], values[14]
    if not 512 <= block <= 1 << 16:
        return None
    return Geometry(log_blocks * block, unit * block, width * block)


def attributes(folder: str, kind: str) -> Attributes:
    """Return the attributes of the largest file in a folder, or of the folder without one."""
    largest: tuple[int, str] | None = None
    clusters = []
    for name, status in _files(folder):
        if largest is None or status.st_size > largest[0]:
            largest = (status.st_size, name)
        if kind == "ext4" and 0 < status.st_size <= 1024 and status.st_blocks > 0:
            clusters.append(status.st_blocks * 512)
    path = folder if largest is None else os.path.join(folder, largest[1])
    data = _asked(path, _FS_IOC_GETFLAGS, 8)
    cluster = min(clusters, default=None)
    if data is None:
        return Attributes(cluster_bytes=cluster)
    flags = int.from_bytes(data[:4], "little")
    is_ext = kind in ("ext2", "ext3", "ext4")
    return Attributes(
        file=os.path.basename(path),
        nocow=bool(flags & _NOCOW) if kind == "btrfs" else None,
        extents=bool(flags & _EXTENTS) if is_ext else None,
        journaled=bool(flags & _JOURNAL_DATA) if is_ext else None,
        cluster_bytes=cluster,
    )


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
        number = os.open(path, _FLAGS)
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

# SPDX-License-Identifier: Apache-2.0
"""What file systems say of themselves and of files, by calls that read nothing from a device."""

from __future__ import annotations

import struct

import msgspec

from stallscope.collectors.paths import asking

__all__ = ["Attributes", "Geometry", "Space", "attributes", "geometry", "space"]

# Flags of include/uapi/linux/fs.h
_JOURNAL_DATA = 0x4000
_EXTENTS = 0x80000
_NOCOW = 0x800000
# fs/xfs/libxfs/xfs_fs.h: the first version of the structure has all that is needed here.
_XFS_GEOMETRY = struct.Struct("=8I4Q16s7I4x")


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
    found = asking.space(path)
    return Space(
        found.f_frsize or found.f_bsize,
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_files,
        found.f_favail,
    )


def geometry(folder: str) -> Geometry | None:
    """Return the geometry of the XFS that a folder is on; None where it says none.

    Raises: SilentDiskError.
    """
    data = asking.geometry(folder)
    if data is None:
        return None
    values = _XFS_GEOMETRY.unpack(data)
    block, log_blocks, unit, width = values[0], values[4], values[13], values[14]
    if not 512 <= block <= 1 << 16:
        return None
    return Geometry(log_blocks * block, unit * block, width * block)


def attributes(folder: str, kind: str) -> Attributes:
    """Return the attributes of the largest file in a folder, or of the folder without one.

    Raises: SilentDiskError.
    """
    name, data, sizes = asking.largest(folder)
    clusters = [blocks * 512 for size, blocks in sizes if 0 < size <= 1024 and blocks > 0]
    cluster = min(clusters, default=None) if kind == "ext4" else None
    if data is None:
        return Attributes(cluster_bytes=cluster)
    flags = int.from_bytes(data[:4], "little")
    is_ext = kind in ("ext2", "ext3", "ext4")
    return Attributes(
        file=name,
        nocow=bool(flags & _NOCOW) if kind == "btrfs" else None,
        extents=bool(flags & _EXTENTS) if is_ext else None,
        journaled=bool(flags & _JOURNAL_DATA) if is_ext else None,
        cluster_bytes=cluster,
    )

# SPDX-License-Identifier: Apache-2.0
"""What is mounted where, by ``/proc/PID/mountinfo``, which all users may read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = ["OWN", "Place", "is_shared", "place"]

OWN = Path("/proc/self/mountinfo")
_MAX_BYTES = 4 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")
_SHARED = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|fuse.*|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs"
    "|smb3|smbfs|vboxsf|virtiofs"
)
"""File systems that several hosts or virtual machines can have mounted."""


class Place(msgspec.Struct, frozen=True):
    """Where a path lies: what is mounted there, and the path within that file system."""

    point: str
    kind: str
    source: str
    path: str
    layer: str = ""
    """Of an overlay: the directory with the container's own files."""


def place(path: str, mountinfo: Path = OWN) -> Place | None:
    """Return the place of an absolute path, by the last mount that covers it; None: unknown."""
    best: Place | None = None
    for mount in _mounts(mountinfo):
        point = mount.point.rstrip("/")
        covers = path == point or path.startswith(f"{point}/")
        if covers and (best is None or len(point) >= len(best.point.rstrip("/"))):
            best = mount
    if best is None:
        return None
    below = path[len(best.point.rstrip("/")) :]
    return msgspec.structs.replace(best, path=best.path.rstrip("/") + below)


def is_shared(path: Path) -> bool:
    """Return whether other hosts may have the file system of a path mounted."""
    found = place(str(path.resolve()))
    return found is not None and _SHARED.fullmatch(found.kind) is not None


def _mounts(mountinfo: Path) -> Iterator[Place]:
    text = ""
    with contextlib.suppress(OSError), mountinfo.open("rb") as file:
        text = file.read(_MAX_BYTES).decode("utf-8", "surrogateescape")
    for line in text.splitlines():
        # proc_pid_mountinfo(5): "36 35 98:0 /root /point options - type source super-options"
        head, _, tail = line.partition(" - ")
        fields, source = head.split(), tail.split()
        if len(fields) < 5 or len(source) < 2:
            continue
        layer = ""
        if source[0] == "overlay" and len(source) > 2:
            found = re.search(r"(?:^|,)upperdir=([^,]*)", source[2])
            layer = found.group(1) if found is not None else ""
        yield Place(_plain(fields[4]), source[0], _plain(source[1]), _plain(fields[3]), layer)


def _plain(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), field)

# SPDX-License-Identifier: Apache-2.0
"""Which mount a path is on, and what the kernel says of it; /proc/PID/mountinfo."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from stallscope.collectors.disks.tree import Tree

__all__ = ["Mount", "mount_of", "parse", "read", "texts_of"]

_MAX_TABLE = 4 << 20
_MAX_MOUNTS = 10_000
_MAX_OPTIONS = 64
_ESCAPE = re.compile(r"\\([0-7]{3})")
_LONG = 65_536


class Mount(msgspec.Struct, frozen=True):
    """One line of a mountinfo."""

    number: str
    """``major:minor``."""
    point: str
    kind: str
    device: str
    options: dict[str, str]


def parse(text: str) -> Iterator[Mount]:
    """Yield the mounts of a mountinfo; what is no line of one is skipped."""
    for line in text.splitlines()[:_MAX_MOUNTS]:
        before, separator, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not separator or len(left) < 6 or len(right) < 2 or ":" not in left[2]:
            continue
        options = left[5].split(",") + (right[2].split(",") if len(right) > 2 else [])
        yield Mount(left[2], _plain(left[4]), right[0], _plain(right[1]), _options(options))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 8)), text)


def _options(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words[:_MAX_OPTIONS] if word)
    return {name: _plain(value) for name, _, value in pairs}


def read(tree: Tree, pid: int | str) -> tuple[Mount, ...]:
    """Return the mounts that a process sees; none where they cannot be read."""
    return tuple(parse(tree.text(f"/proc/{pid}/mountinfo", _MAX_TABLE) or ""))


def mount_of(mounts: Sequence[Mount], path: str, number: str | None) -> Mount | None:
    """Return the mount that a path without links is on.

    ``number``: of the device that stat(2) names. It decides where one mount hides another; that of
    a subvolume is no mount's.
    """
    above = [mount for mount in mounts if _is_below(path, mount.point)]
    same = [mount for mount in above if mount.number == number]
    # Of two on one point the later one is on top.
    return max(reversed(same or above), key=lambda mount: len(mount.point), default=None)


def _is_below(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(f"{point}/")


def texts_of(tree: Tree, kind: str, device: str | None) -> dict[str, str]:
    """Return the kernel's files about a file system, by path; ``device``: the name in /sys."""
    if kind not in ("ext4", "ext3", "ext2") or device is None:
        return {}
    found = {}
    for path in (f"/proc/fs/ext4/{device}/options", f"/sys/fs/ext4/{device}/errors_count"):
        text = tree.text(path, _LONG)
        if text is not None:
            found[path] = text
    return found

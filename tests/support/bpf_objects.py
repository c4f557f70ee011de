# SPDX-License-Identifier: Apache-2.0
"""The BPF programs, maps and links that a process holds, and those that the kernel has."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["attached", "attached_link", "descriptors", "held", "loaded"]

SYS_BPF = 321
"""Of x86-64."""
NEXT = {"prog": 11, "map": 12, "link": 31}
"""BPF_PROG_GET_NEXT_ID, BPF_MAP_GET_NEXT_ID, BPF_LINK_GET_NEXT_ID."""
LINK = re.compile(r"^link_type:\s*(\S+)\nlink_id:\s*(\d+)$", re.M)
READS = "iter"
"""A link of an iterator runs when it is read: it is attached to nothing."""


def descriptors(pid: int) -> Iterator[str]:
    """Yield what the kernel says of each open descriptor, but for those closed meanwhile.

    Raises: FileNotFoundError, ProcessLookupError where the process has ended.
    """
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield file.read_text()


def held(pid: int) -> set[str]:
    """Return what a process holds: ``prog 17``, ``map 18``, ``link 23``."""
    found = set()
    for fdinfo in descriptors(pid):
        for line in fdinfo.splitlines():
            name, _, value = line.partition(":")
            if (kind := name.removesuffix("_id")) in NEXT and name != kind:
                found.add(f"{kind} {value.strip()}")
    return found


def attached(pids: Sequence[int]) -> int:
    """Return how many links of BPF programs these processes hold, those of iterators left out."""
    links: set[str | None] = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            links.update(map(attached_link, descriptors(pid)))
    return len(links - {None})


def attached_link(fdinfo: str) -> str | None:
    """Return the id of a descriptor's link, where it is one that the kernel runs by itself."""
    found = LINK.search(fdinfo)
    return None if found is None or found[1] == READS else found[2]


def loaded() -> set[str]:
    """Return what the kernel has, of all programs.

    bpftool reads each of them, and fails where one is removed meanwhile.
    """
    return {f"{kind} {number}" for kind in NEXT for number in numbers(kind)}


def numbers(kind: str) -> Iterator[int]:
    libc = ctypes.CDLL(None, use_errno=True)
    attr = (ctypes.c_uint32 * 3)()  # the number before, the next one, flags
    size = ctypes.sizeof(attr)
    while libc.syscall(SYS_BPF, NEXT[kind], ctypes.byref(attr), size) == 0:
        attr[0] = attr[1]
        yield attr[1]
    assert ctypes.get_errno() == errno.ENOENT, errno.errorcode[ctypes.get_errno()]

# SPDX-License-Identifier: Apache-2.0
"""The BPF programs, maps and links that a process holds, and those that the kernel has."""

from __future__ import annotations

import contextlib
import ctypes
import errno
from collections.abc import Iterator
from pathlib import Path

__all__ = ["held", "loaded"]

SYS_BPF = 321
"""Of x86-64."""
NEXT = {"prog": 11, "map": 12, "link": 31}
"""BPF_PROG_GET_NEXT_ID, BPF_MAP_GET_NEXT_ID, BPF_LINK_GET_NEXT_ID."""


def held(pid: int) -> set[str]:
    """Return what a process holds: ``prog 17``, ``map 18``, ``link 23``."""
    found = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(":")
                if (kind := name.removesuffix("_id")) in NEXT and name != kind:
                    found.add(f"{kind} {value.strip()}")
    return found


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

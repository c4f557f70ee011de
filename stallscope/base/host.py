# SPDX-License-Identifier: Apache-2.0
"""Which host, boot and pid namespace this is, and the clocks that nobody sets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

__all__ = ["boot_id", "boottime_ns", "digest", "host_id", "pid_namespace"]

_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DIGITS = 8


def digest(*parts: str) -> str:
    """Return eight hex digits that stand for some words; nobody can read the words from them."""
    text = "\0".join(("stallscope", *parts))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def host_id(machine_id: Path = _MACHINE_ID) -> str:
    """Return what distinguishes this host or container from others, as eight hex digits.

    Images of containers and cloned machines share their machine-id, hosts can share a name: both
    together are unique. Another name of the host is another host, which costs what was learned;
    two hosts taken for one would cost that the second one is not watched.
    """
    known = ""
    with contextlib.suppress(OSError, UnicodeError):
        known = machine_id.read_text(encoding="ascii")[:100].strip()
    return digest("host", known, os.uname().nodename)


def boot_id() -> str:
    """Return the id of this boot of the kernel; all containers of a host share it. "": unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def boottime_ns() -> int:
    """Return CLOCK_BOOTTIME: it is never set, and counts while the host is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def pid_namespace() -> int:
    """Return the number of the own pid namespace: pids are comparable within it. 0: unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0

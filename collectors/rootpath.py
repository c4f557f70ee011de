# SPDX-License-Identifier: Apache-2.0
"""A path as another process sees it: its own root, with its own symbolic links."""

from __future__ import annotations

import os
import stat

__all__ = ["inside", "read"]

MAX_LINKS = 40
"""As many as the kernel follows."""
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def inside(pid: int, path: str) -> str:
    """Return where this process finds a path of process ``pid``.

    The kernel follows an absolute link below ``/proc/PID/root`` from our own root: ``/var/run``, a
    link to ``/run``, would lead out of a container. A path with more links is returned as it is.
    """
    root = f"/proc/{pid}/root"
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


def read(pid: int, path: str, limit: int) -> bytes | None:
    """Return at most ``limit`` bytes of a regular file of process ``pid``; None where there is none
    that may be read. Nothing in its place can make this wait."""
    try:
        with os.fdopen(os.open(inside(pid, path), _FLAGS), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(limit)
    except (OSError, ValueError):
        pass
    return None

# SPDX-License-Identifier: Apache-2.0
"""A path as another process sees it: its own root, with its own symbolic links."""

from __future__ import annotations

from stallscope.collectors.paths import asking

__all__ = ["inside", "read"]


def inside(pid: int, path: str) -> str:
    """Return where this process finds a path of process ``pid``.

    The kernel follows an absolute link below ``/proc/PID/root`` from our own root: ``/var/run``, a
    link to ``/run``, would lead out of a container. A path with more links than the kernel follows
    is returned as it is. Raises: SilentDiskError.
    """
    return asking.inside(f"/proc/{pid}/root", path)


def read(pid: int, path: str, limit: int) -> bytes | None:
    """Return at most ``limit`` bytes of a regular file of process ``pid``; None where there is none
    that may be read. Nothing in its place can make this wait. Raises: SilentDiskError."""
    try:
        return asking.read_inside(f"/proc/{pid}/root", path, limit)
    except asking.SilentDiskError:
        raise
    except OSError:
        return None

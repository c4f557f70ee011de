# SPDX-License-Identifier: Apache-2.0
"""Priority: the agent works little, and has to do it while a host is overloaded.

Where the kernel gives CPU time to sessions first (sched(7), "The autogroup feature", a default of
most distributions), a nice value counts among the tasks of one session alone: then what leads a
session gives that session the same value.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["lower_priority", "raise_priority", "set_priority"]

_RAISED = -10
"""Hundreds of runnable threads are what a stall has. The probe itself goes to -20."""


def raise_priority() -> None:
    """Raise that of this thread and of those that it starts, where it may be."""
    with contextlib.suppress(PermissionError):
        set_priority(min(_RAISED, os.getpriority(os.PRIO_PROCESS, 0)))


def lower_priority(pid: int, nice: int = 0) -> None:
    """Give a child of the agent its own; raising it, too, may be forbidden."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)


def set_priority(nice: int) -> None:
    """Set that of this thread, and of its session where it leads one. Raises: PermissionError."""
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if os.getsid(0) != os.getpid():
        return  # the session is somebody's shell
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(f"{nice}\n")

# SPDX-License-Identifier: Apache-2.0
"""Priority: the agent needs little CPU time, but needs it while the host is overloaded.

Where the kernel gives CPU time to sessions first (sched(7), "The autogroup feature", a default of
most distributions), a nice value counts among the tasks of one session only: then a session leader
sets its session to the same value.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

__all__ = ["be_expendable", "lower_priority", "raise_priority", "set_priority"]

_RAISED = -10
"""A stall can have hundreds of runnable threads. The probe itself uses -20."""


def raise_priority() -> None:
    """Raise the priority of this thread and of those that it starts, where that is allowed."""
    with contextlib.suppress(PermissionError):
        set_priority(min(_RAISED, os.getpriority(os.PRIO_PROCESS, 0)))


def be_expendable(nice: int, memory: int) -> None:
    """Lower the priority of this process, which the agent can do without: with at most so many
    bytes of memory, and killed first when the host has none left."""
    with contextlib.suppress(PermissionError):
        set_priority(nice)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")


def lower_priority(pid: int, nice: int = 0) -> None:
    """Set the priority of a child of the agent, and of its session where it leads one; where that
    is allowed."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        if os.getsid(pid) == pid:
            _set_session(pid, nice)


def set_priority(nice: int) -> None:
    """Set the priority of this thread, and of its session where it leads one. Raises:
    PermissionError."""
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if os.getsid(0) != os.getpid():
        return  # the session belongs to a shell
    _set_session("self", nice)


def _set_session(process: int | str, nice: int) -> None:
    with contextlib.suppress(OSError), open(f"/proc/{process}/autogroup", "w") as file:
        file.write(f"{nice}\n")

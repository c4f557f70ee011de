# SPDX-License-Identifier: Apache-2.0
"""What an agent says of itself to other commands of the host: a small file in its folder of the
spool (owners.py), whose lock shows that it lives. docs/commands/agents.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallscope.agent.liveness import AgentHealth
from stallscope.base import package
from stallscope.base.errors import StallscopeError
from stallscope.base.text import without_surrogates
from stallscope.base.threads import keep_running

__all__ = ["MAX_BYTES", "NAME", "WRITE_SECONDS", "AgentFile", "AgentReport", "ServerReport"]

NAME = ".agent.json"
"""No server has such a name, and so no folder in the spool."""
WRITE_SECONDS = 5.0
MAX_BYTES = 4 << 20
_END_SECONDS = 0.3
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ServerReport(msgspec.Struct, frozen=True):
    """One server of an agent."""

    name: str
    state: str
    """``starting``, ``waiting``, ``watching``, ``failed``, ``ended``."""
    health: AgentHealth


class AgentReport(msgspec.Struct, frozen=True):
    """An agent process. Times are wall seconds."""

    pid: int
    """In its own pid namespace."""
    host: str
    version: str
    started: float
    written: float
    servers: tuple[ServerReport, ...]
    schema: str = "stallscope.agent-state/1"


class AgentFile:
    """Writes the file, in a thread of its own: its disk may never answer.

    It is written in place: to replace a file would have its disk write at once, beside the server.
    A reader that meets half of two texts reads again.
    """

    def __init__(
        self,
        folder: Callable[[], Path],
        servers: Callable[[], Sequence[ServerReport]],
    ) -> None:
        """``folder``: returns that of this process, and may raise StallscopeError."""
        self._folder = folder
        self._servers = servers
        self._started = time.time()
        self._stop = threading.Event()
        self._thread = keep_running("agent-file", self._work)

    def close(self) -> None:
        """End it; a write that hangs is left behind."""
        self._stop.set()
        self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        while not self._stop.wait(WRITE_SECONDS if self._is_known() else 0.2):
            if self._is_known():
                with contextlib.suppress(OSError, StallscopeError):
                    self._write(self._folder() / NAME)

    def _is_known(self) -> bool:
        """Return whether it waits or watches: one that finds no server leaves nothing behind."""
        return any(one.state != "starting" for one in self._servers())

    def _write(self, path: Path) -> None:
        report = AgentReport(
            os.getpid(),
            os.uname().nodename,
            package.version(),
            self._started,
            time.time(),
            tuple(self._servers()),
        )
        data = msgspec.json.encode(without_surrogates(msgspec.to_builtins(report)))
        descriptor = os.open(path, _OPEN, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            os.pwrite(descriptor, data.ljust(size - 1) + b"\n", 0)
        finally:
            os.close(descriptor)

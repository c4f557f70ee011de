# SPDX-License-Identifier: Apache-2.0
"""The server that the agent watches, through restarts and upgrades."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable

from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.processes import NotRunningError, Selector, Server
from stallscope.collectors.waits import find_again
from stallscope.incident import TargetEntry
from stallscope.server.families import family

__all__ = ["Target", "finder"]

FIRST_PAUSE_NS = 100_000_000
LONGEST_PAUSE_NS = 2_000_000_000
"""Looking for a process reads all of /proc."""
LONGEST_YOUTH_PAUSE_NS = 10_000_000_000
"""Recovery can take a server hours; then it listens."""


def finder(target: str | None, selector: Selector, server: Server) -> Callable[[Server], Server]:
    """Return how to find the server again: by what the user called it.

    A process id is never given to a restarted server: its program's name stands in, and its data
    directory where several run.
    """
    if target is not None and not target.isdecimal():
        return find_again(target, selector)
    return find_again(server.name, selector)


class Target:
    """A server, and its next process when it has ended. ``tell`` is given sentences."""

    def __init__(
        self, server: Server, find: Callable[[Server], Server], tell: Callable[[str], None]
    ) -> None:
        self._find = find
        self._tell = tell
        self._descriptor = -1
        self._pause_ns = FIRST_PAUSE_NS
        self._due_ns = 0
        self._said = ""
        self._take_up(server)

    @property
    def running(self) -> bool:
        """Say whether it ran when it was looked at last."""
        return self._descriptor >= 0

    def entry(self) -> TargetEntry:
        """Return what an incident keeps of it."""
        main = self.server.main
        return TargetEntry(
            pid=main.pid,
            name=self.server.name,
            start_time=main.start_time,
            exe=main.exe,
            server=family(main.exe, main.comm),
            host=os.uname().nodename,
        )

    def look(self, now_ns: int) -> str | None:
        """Look after it: ``ended`` or ``back`` where that has just happened.

        ``grown``: it was taken up while it started, and can be reached now, or elsewhere.
        """
        if self.running:
            if not select.select([self._descriptor], [], [], 0)[0]:
                return "grown" if self._young and self._has_grown(now_ns) else None
            self.close()
            self._lost(now_ns)
            return "ended"
        if now_ns < self._due_ns or not self._look_for_it(now_ns):
            return None
        return "back"

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take_up(self, server: Server) -> None:
        self.server = server
        self._listens = processes.listens(server)
        self._young = True
        """Where it is reached may change yet."""
        with contextlib.suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(server.main.pid)

    def _lost(self, now_ns: int) -> None:
        self._tell(f"{self.server.name} (pid {self.server.main.pid}) has ended; waiting for it")
        self._soon(now_ns)

    def _has_grown(self, now_ns: int) -> bool:
        if now_ns < self._due_ns:
            return False
        self._put_off(now_ns, LONGEST_YOUTH_PAUSE_NS)
        listens = processes.listens(self.server)
        again = processes.seen_again(self.server)
        if again is None:
            return False
        grown = (listens and not self._listens) or _places(again) != _places(self.server)
        self.server = again
        self._listens = listens
        self._young = grown or not listens  # one socket comes after the other
        return grown

    def _look_for_it(self, now_ns: int) -> bool:
        try:
            found = self._find(self.server)
        except NotRunningError:
            return self._later(now_ns, "")
        except StallscopeError as error:
            return self._later(now_ns, str(error))
        old, new = self.server.main, found.main
        if (new.pid, new.start_time) == (old.pid, old.start_time):  # /proc still shows it
            return self._later(now_ns, "")
        if processes.read(new.pid) is None:
            return self._later(now_ns, "")
        self._take_up(found)
        if not self.running:
            return self._later(now_ns, "")
        self._said = ""
        self._soon(now_ns)
        changed = "" if new.program == old.program else ", another program file"
        self._tell(f"watching {found.name} (pid {new.pid}{changed})")
        return True

    def _later(self, now_ns: int, why: str) -> bool:
        if why and why != self._said:
            self._tell(why)
        self._said = why
        self._put_off(now_ns, LONGEST_PAUSE_NS)
        return False

    def _soon(self, now_ns: int) -> None:
        self._pause_ns = FIRST_PAUSE_NS
        self._due_ns = now_ns + self._pause_ns

    def _put_off(self, now_ns: int, longest_ns: int) -> None:
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 3 // 2, longest_ns)


def _places(server: Server) -> tuple[object, ...]:
    """Return what a server is asked by."""
    return server.sockets, server.ports, server.datadir

# SPDX-License-Identifier: Apache-2.0
"""The server that the agent watches, also after restarts and upgrades."""

from __future__ import annotations

import contextlib
import logging
import os
import select
from collections.abc import Callable

from stallscope.agent.candidates import SEARCH_SECONDS, STARTING_SECONDS, Candidates
from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.host import exits
from stallscope.collectors.pins import Guard
from stallscope.collectors.processes import NotRunningError, Selector, Server
from stallscope.collectors.waits import find_again
from stallscope.model.incident import TargetEntry
from stallscope.server.families import family

__all__ = ["Target", "finder"]

_log = logging.getLogger(__name__)

FIRST_PAUSE_NS = 100_000_000
LONGEST_PAUSE_NS = 2_000_000_000
"""The first pause: a search for a process reads all of /proc."""
LONGEST_STARTING_PAUSE_NS = 10_000_000_000
"""The longest pause: a server can need hours for its recovery before it listens."""


def finder(
    target: str | None, selector: Selector, server: Server, guard: Guard
) -> Callable[[Server], Server]:
    """Return how to find the server again: by the user's words. A restarted server has another pid:
    in place of a pid its program's name is used.
    """
    named = target is not None and not target.isdecimal()
    return find_again(target if named and target else server.name, selector, guard)


class Target:
    """A server, and its next process when it has ended."""

    def __init__(
        self, server: Server, find: Callable[[Server], Server], guard: Guard | None = None
    ) -> None:
        self._find = find
        self._guard = Guard() if guard is None else guard
        self._descriptor = -1
        self._candidates = Candidates(server.name)
        self._lost_ns = 0
        """When it ended, or a candidate came or went after that."""
        self._pause_ns = FIRST_PAUSE_NS
        self._due_ns = 0
        self._logged = ""
        self.ending = ""
        """How its last process ended, in words, where that is known."""
        self.clean: bool | None = None
        """Whether that was in order; None: it is not known."""
        self._life: exits.Life | None = None
        self._follow(server)

    @property
    def running(self) -> bool:
        """Return whether it ran at the last poll."""
        return self._descriptor >= 0

    @property
    def others(self) -> tuple[str, ...]:
        """Return the programs of the server's name that are not watched, and why."""
        return () if self.running else self._guard.others

    def entry(self) -> TargetEntry:
        """Return the target as an incident records it."""
        main = self.server.main
        return TargetEntry(
            pid=main.pid,
            name=self.server.name,
            start_time=main.start_time,
            exe=main.exe,
            server=family(main.exe, main.comm),
            host=os.uname().nodename,
        )

    def is_another(self, entry: TargetEntry) -> bool:
        """Return whether an incident is of another server: of another host, or one that runs."""
        if entry.host not in (None, os.uname().nodename):
            return True
        if entry.pid in self.server.pids:
            return False
        found = processes.read(entry.pid)
        return found is not None and found.start_time == entry.start_time

    def poll(self, now_ns: int) -> str | None:
        """Return ``ended`` or ``restarted`` where that has just happened.

        ``reachable``: it listens now, or at another address than before.
        """
        if self.running:
            if not select.select([self._descriptor], [], [], 0)[0]:
                return "reachable" if self._starting and self._is_reachable(now_ns) else None
            assert self._life is not None
            self.ending, self.clean = self._life.ending(self._descriptor)
            self.close()
            self._wait_for_next(now_ns)
            return "ended"
        if self._candidates.changed(now_ns / 1e9):
            self._lost_ns = now_ns
            self._retry_soon(now_ns)
        if now_ns < self._due_ns or not self._find_next(now_ns):
            return None
        return "restarted"

    def close(self) -> None:
        """Close its descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._life is not None:
            self._life.close()
            self._life = None

    def _follow(self, server: Server) -> None:
        self.server = server
        self._guard.seen(server)
        self._listens = processes.listens(server)
        self._starting = True
        """Its addresses may still change."""
        with contextlib.suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(server.main.pid)
            self._life = exits.Life(server.main.pid, server.sockets)

    def _wait_for_next(self, now_ns: int) -> None:
        self._lost_ns = now_ns
        self._candidates.changed(now_ns / 1e9)
        self._retry_soon(now_ns)
        how = f": {self.ending}" if self.ending else ""
        name, pid = self.server.name, self.server.main.pid
        _log.warning("%s (pid %d) has ended%s; waiting for it", name, pid, how)

    def _is_reachable(self, now_ns: int) -> bool:
        if now_ns < self._due_ns:
            return False
        self._retry_later(now_ns, LONGEST_STARTING_PAUSE_NS)
        listens = processes.listens(self.server)
        again = processes.seen_again(self.server)
        if again is None:
            return False
        changed = (listens and not self._listens) or _addresses(again) != _addresses(self.server)
        self.server = again
        if self._life is not None:
            self._life.listens(again.sockets)
        self._guard.seen(again)
        self._listens = listens
        self._starting = changed or not listens  # it opens its sockets one after the other
        return changed

    def _find_next(self, now_ns: int) -> bool:
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
        self._follow(found)
        if not self.running:
            return self._later(now_ns, "")
        self._logged = ""
        self._retry_soon(now_ns)
        changed = "" if new.program == old.program else ", another program file"
        _log.info("watching %s (pid %d%s)", found.name, new.pid, changed)
        return True

    def _later(self, now_ns: int, why: str) -> bool:
        if why and why != self._logged:
            _log.warning("%s", why)
        self._logged = why
        if now_ns - self._lost_ns < STARTING_SECONDS * 1e9:
            self._retry_later(now_ns, LONGEST_PAUSE_NS)
        else:
            self._due_ns = now_ns + round(SEARCH_SECONDS * 1e9)
        return False

    def _retry_soon(self, now_ns: int) -> None:
        self._pause_ns = FIRST_PAUSE_NS
        self._due_ns = now_ns + self._pause_ns

    def _retry_later(self, now_ns: int, longest_ns: int) -> None:
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 3 // 2, longest_ns)


def _addresses(server: Server) -> tuple[object, ...]:
    """Return where a server is reached."""
    return server.sockets, server.ports, server.datadir

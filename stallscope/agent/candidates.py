# SPDX-License-Identifier: Apache-2.0
"""Whether a search for a server can find something new: a search reads much of /proc, and for each
server of the host its open files. To see that a process has come takes one list of names.
"""

from __future__ import annotations

import os

from stallscope.collectors.processes import PROC
from stallscope.server.families import family

__all__ = [
    "NEWS_SHARE",
    "SEARCH_SECONDS",
    "SHARE",
    "STARTING_SECONDS",
    "STARTING_SHARE",
    "Candidates",
]

YOUNG_SECONDS = 10.0
"""So long a new process is checked again: it may still become another program (execve(2))."""
STARTING_SECONDS = 120.0
"""So long after a candidate has come or gone, searches are frequent: it may not listen yet."""
STARTING_SHARE = 200.0
"""Then the pause after a search is at least so many times its length: 0.5 % of a core."""
NEWS_SHARE = 20.0
"""The same for a search because of a candidate that has just come or gone."""
SEARCH_SECONDS = 60.0
"""Otherwise, from one search to the next."""
SHARE = 1000.0
"""The same as STARTING_SHARE, for these searches: 0.1 % of a core."""


class Candidates:
    """Processes that may be the server: of its name, or any database server."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._known: dict[int, float] = {}
        """Processes, and when each was seen first."""
        self._found: set[int] = set()

    def changed(self, now: float) -> bool:
        """Return whether one has come or gone since the last call."""
        try:
            pids = {int(name) for name in os.listdir(PROC) if name.isdigit()}
        except OSError:
            return True
        before = set(self._found)
        self._found &= pids
        known = self._known
        self._known = {pid: known.get(pid, now) for pid in pids}
        for pid, since in self._known.items():
            if now - since < YOUNG_SECONDS or pid not in known:
                (self._found.add if self._fits(pid) else self._found.discard)(pid)
        return self._found != before

    def _fits(self, pid: int) -> bool:
        try:
            comm = (PROC / str(pid) / "comm").read_bytes().decode(errors="replace").rstrip("\n")
        except OSError:
            return False
        try:
            exe = os.readlink(PROC / str(pid) / "exe").removesuffix(" (deleted)")
        except OSError:
            exe = None
        names = {comm, str(pid), os.path.basename(exe or "")}
        return family(exe, comm) is not None or self.name in names

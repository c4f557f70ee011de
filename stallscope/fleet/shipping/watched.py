# SPDX-License-Identifier: Apache-2.0
"""For how long an agent has watched a server, by day: the denominator of "stalls an hour"."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from stallscope.base import atomicfile, host, package
from stallscope.base.errors import StallscopeError
from stallscope.fleet.tables import AgentRow, day_of
from stallscope.store import files

__all__ = ["Watched", "WatchedDays"]

STATE = "watched.json"
LONGEST_STEP = 30.0
"""Seconds between two notes that count: in a longer time the agent did not run."""
_MAX_STATE = 1 << 16


class Watched(msgspec.Struct, frozen=True):
    """A server, as its agent knows it now."""

    host: str
    program: str
    pid: int
    server: str = ""
    version: str = ""
    runs: bool = True
    captures_lost: int = 0


class _State(msgspec.Struct, frozen=True):
    """Of the pass before, for one that continues it."""

    boot: str
    pid: int
    day: str
    started_ms: int
    watched_s: float


class WatchedDays:
    """One server. Its caller has a lock."""

    def __init__(self, folder: Path, name: str, every_s: float, *, continues: bool) -> None:
        """``name``: of the host, where that is not its own. ``continues``: passes that follow each
        other count as one agent."""
        self.host = name
        self.every_s = every_s
        self.watched: Watched | None = None
        self.version = ""
        """Of the server, where only an analysis knows it."""
        self._folder = folder
        self._continues = continues
        self._before: _State | None = None
        self._day = ""
        self._started_ms = 0
        self._watched_s = 0.0
        self._noted = 0.0
        self._said = False

    def load(self) -> None:
        """Read what the pass before has left."""
        if not self._continues:
            return
        with contextlib.suppress(
            OSError, StallscopeError, msgspec.MsgspecError, UnicodeError, RecursionError
        ):
            with files.folder(self._folder) as inside:
                data = files.read(STATE, inside, _MAX_STATE)
            self._before = msgspec.json.decode(data, type=_State)

    def note(self, watched: Watched, wall_ns: int, now: float) -> list[AgentRow]:
        """Take what is watched. Return rows that no later one replaces: of the day that is over, or
        of the process that has ended."""
        wall_ms = wall_ns // 1_000_000
        day = day_of(wall_ms)
        old = self.watched
        ended: list[AgentRow] = []
        if old is not None:
            if old.runs and watched.runs:
                self._watched_s += min(max(0.0, now - self._noted), LONGEST_STEP)
            if old.pid != watched.pid:
                ended.append(self._row(wall_ms, "ended"))
            elif day != self._day:
                ended.append(self._row(wall_ms, self._state(old)))
        if old is None or old.pid != watched.pid:
            self._started_ms, self._watched_s = wall_ms, 0.0
            self.version = ""
            self._continue(watched, day)
        elif day != self._day:
            self._watched_s = 0.0
        self.watched, self._day, self._noted = watched, day, now
        return ended

    def now(self, wall_ns: int, now: float) -> list[AgentRow]:
        """Return the row of this moment; none before something is watched."""
        watched = self.watched
        if watched is None:
            return []
        rows = self.note(watched, wall_ns, now)
        self._said = True
        return [*rows, self._row(wall_ns // 1_000_000, self._state(watched))]

    def last(self, wall_ns: int, now: float) -> list[AgentRow]:
        """Return the rows of the agent's end, and keep the state for a pass that continues it."""
        watched = self.watched
        if watched is None:
            return []
        rows = self.note(watched, wall_ns, now)
        if not self._continues:
            return [*rows, self._row(wall_ns // 1_000_000, "ended")]
        state = _State(host.boot_id(), watched.pid, self._day, self._started_ms, self._watched_s)
        with contextlib.suppress(OSError, StallscopeError):
            data = msgspec.json.encode(state)
            atomicfile.write(self._folder / STATE, [data, b"\n"], force=True)
        if self._said:  # the next pass says the rest
            return rows
        return [*rows, self._row(wall_ns // 1_000_000, self._state(watched))]

    def _continue(self, watched: Watched, day: str) -> None:
        before, self._before = self._before, None
        if before is None or before.pid != watched.pid or before.boot != host.boot_id():
            return
        self._started_ms = before.started_ms
        if before.day == day:
            self._watched_s = before.watched_s

    def _state(self, watched: Watched) -> str:
        return "watching" if watched.runs else "waiting"

    def _row(self, wall_ms: int, state: str) -> AgentRow:
        watched = self.watched
        assert watched is not None
        return AgentRow(
            day=self._day,
            rev=wall_ms,
            host=self.host or watched.host,
            program=watched.program,
            pid=watched.pid,
            server=watched.server,
            version=watched.version or self.version,
            agent_version=package.version(),
            boot=host.boot_id(),
            started_ms=self._started_ms,
            seen_ms=wall_ms,
            watched_s=round(self._watched_s, 3),
            every_s=self.every_s,
            state=state,
            skew_ms=None,
            waiting=0,
            dropped=0,
            why="",
            captures_lost=watched.captures_lost,
        )

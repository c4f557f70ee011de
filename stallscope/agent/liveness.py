# SPDX-License-Identifier: Apache-2.0
"""What other threads may see of the agent's loop: that it runs, and how the agent is.

The loop replaces a value that is never changed, and sets a number; neither needs a lock.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope.agent.clock import NS
from stallscope.base.times import local
from stallscope.collectors.processes import Server

__all__ = ["BEAT_SECONDS", "SLOW_DISK_SECONDS", "AgentHealth", "AgentState", "Liveness"]

BEAT_SECONDS = 30.0
"""A loop that was silent for longer hangs. It wakes up once a second, on a busy host later."""
SLOW_DISK_SECONDS = 30.0
DEAD_DISK_SECONDS = 120.0
"""A store whose disk has not answered for so long; for longer than the second, nothing is kept."""
MANY_JOBS = 100
"""So many jobs wait only for a disk that does not answer."""


class AgentState(msgspec.Struct, frozen=True):
    """An agent at its latest poll."""

    server: str
    """The program's name."""
    pid: int | None
    """None: the server does not run, and is waited for."""
    uid: int | None = None
    """The user that it runs as."""
    datadir: str | None = None
    probe: bool | None = None
    """It is ready to capture. None: not known yet."""
    sql: bool | None = None
    """None: SQL is not used, or not known yet."""
    incident_open: bool = False
    writer: bool = True
    """Its thread runs."""
    disk_seconds: float = 0.0
    """For how long the store's disk has not answered; 0: it has."""
    waiting_jobs: int = 0
    """Of the writer."""
    failing: dict[str, str] = {}
    """Collectors that fail, and why: the server may not have what they read."""
    undelivered: dict[str, str] = {}
    """Destinations of notifications that do not work, and why."""
    waiting: dict[str, int] = {}
    """Notifications that wait, by destination."""
    unshipped: dict[str, str] = {}
    """Engines of the fleet that do not take what is shipped, and why."""
    answered: float | None = None
    """Wall seconds of the server's latest answer over SQL."""
    blind_since: float | None = None
    """Wall seconds since which nothing shows whether the server stalls; None: something does."""
    blind_why: str = ""
    alerts: tuple[str, ...] = ()
    """Those that are open."""
    last_poll: float | None = None
    last_capture: float | None = None
    others: tuple[str, ...] = ()
    """Programs of the server's name that are not watched, and why."""


class AgentHealth(msgspec.Struct, frozen=True):
    """How an agent is: ``ok``, ``degraded`` (it works, with less), or ``failed``: a stall would not
    be noticed, or not be stored."""

    status: str
    state: AgentState
    loop_silent_seconds: float
    wrong: tuple[str, ...] = ()
    live: bool = True
    """No restart of the agent is needed: it works, or what it needs is missing."""


class Liveness:
    """Of one agent."""

    def __init__(self, server: Server, now_ns: int) -> None:
        self.state = AgentState(
            server.name, server.main.pid, uid=server.uid, datadir=server.datadir
        )
        self._beat_ns = now_ns

    def beat(self, now_ns: int) -> None:
        """The loop runs."""
        self._beat_ns = now_ns

    def health(self, now_ns: int) -> AgentHealth:
        """Return how the agent is; ``now_ns`` is of its clock."""
        silent = max(0.0, (now_ns - self._beat_ns) / NS)
        state = self.state
        broken, blind = tuple(_broken(state, silent)), tuple(_blind(state))
        lacking = tuple(_lacking(state))
        status = "failed" if broken or blind else "degraded" if lacking else "ok"
        wrong = (*broken, *blind, *lacking)
        return AgentHealth(status, state, round(silent, 3), wrong, not broken)


def _broken(state: AgentState, silent: float) -> Iterator[str]:
    """Yield what only a restart of the agent can repair."""
    if silent > BEAT_SECONDS:
        yield f"the agent's loop has not run for {silent:.0f} s"
    if not state.writer:
        yield "the thread that writes the store has ended"


def _blind(state: AgentState) -> Iterator[str]:
    """Yield why no stall would be noticed now, or stored."""
    if state.pid is None:
        yield f"{state.server} does not run; waiting for it"
    elif state.blind_since is not None:
        yield f"blind since {local(round(state.blind_since * NS))[:19]}: {state.blind_why}"
    if state.disk_seconds > DEAD_DISK_SECONDS:
        yield _frozen(state)


def _frozen(state: AgentState) -> str:
    return f"the store's disk has not answered for {state.disk_seconds:.0f} s"


def _lacking(state: AgentState) -> Iterator[str]:
    """Yield what does not work, and is tried again."""
    for other in state.others:
        yield f"not watched: {other}"
    if SLOW_DISK_SECONDS < state.disk_seconds <= DEAD_DISK_SECONDS:
        yield _frozen(state)
    if state.pid is not None and state.probe is False:
        yield "the probe is not ready: no stacks are taken"
    if state.pid is not None and state.sql is False:
        yield "the server does not answer over SQL"
    if state.waiting_jobs > MANY_JOBS:
        yield f"{state.waiting_jobs} writes wait for the disk of the store"
    for name, why in sorted(state.undelivered.items()):
        yield f"notifications to {name} are not delivered: {why}"
    for name, why in sorted(state.unshipped.items()):
        yield f"incidents are not shipped to {name}: {why}"

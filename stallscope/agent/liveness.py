# SPDX-License-Identifier: Apache-2.0
"""What other threads may see of the agent's loop: that it runs, and how the agent is.

The loop replaces a value that is never changed, and sets a number; neither needs a lock.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope.agent.clock import NS
from stallscope.collectors.processes import Server

__all__ = ["BEAT_SECONDS", "AgentHealth", "AgentState", "Liveness"]

BEAT_SECONDS = 30.0
"""A loop that was silent for longer hangs. It wakes up once a second, on a busy host later."""
MANY_JOBS = 100
"""So many jobs wait only for a disk that does not answer."""


class AgentState(msgspec.Struct, frozen=True):
    """An agent at its latest poll."""

    server: str
    """The program's name."""
    pid: int | None
    """None: the server does not run, and is waited for."""
    probe: bool | None = None
    """It is ready to capture. None: not known yet."""
    sql: bool | None = None
    """None: SQL is not used, or not known yet."""
    incident_open: bool = False
    writer: bool = True
    """Its thread runs."""
    waiting_jobs: int = 0
    """Of the writer."""
    failing: dict[str, str] = {}
    """Collectors that fail, and why: the server may not have what they read."""
    undelivered: dict[str, str] = {}
    """Destinations of notifications that do not work, and why."""
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
    """How an agent is: ``ok``, ``degraded`` (it works, with less), or ``failed``."""

    status: str
    state: AgentState
    loop_silent_seconds: float
    wrong: tuple[str, ...] = ()


class Liveness:
    """Of one agent."""

    def __init__(self, server: Server, now_ns: int) -> None:
        self.state = AgentState(server.name, server.main.pid)
        self._beat_ns = now_ns

    def beat(self, now_ns: int) -> None:
        """The loop runs."""
        self._beat_ns = now_ns

    def health(self, now_ns: int) -> AgentHealth:
        """Return how the agent is; ``now_ns`` is of its clock."""
        silent = max(0.0, (now_ns - self._beat_ns) / NS)
        state = self.state
        broken = tuple(_broken(state, silent))
        lacking = tuple(_lacking(state))
        status = "failed" if broken else "degraded" if lacking else "ok"
        return AgentHealth(status, state, round(silent, 3), (*broken, *lacking))


def _broken(state: AgentState, silent: float) -> Iterator[str]:
    """Yield what only a restart of the agent can repair."""
    if silent > BEAT_SECONDS:
        yield f"the agent's loop has not run for {silent:.0f} s"
    if not state.writer:
        yield "the thread that writes the store has ended"


def _lacking(state: AgentState) -> Iterator[str]:
    """Yield what does not work, and is tried again."""
    if state.pid is None:
        yield f"{state.server} does not run; waiting for it"
    elif state.probe is False:
        yield "the probe is not ready: no stacks are taken"
    if state.sql is False:
        yield "the server does not answer over SQL"
    if state.waiting_jobs > MANY_JOBS:
        yield f"{state.waiting_jobs} writes wait for the disk of the store"
    for name, why in sorted(state.undelivered.items()):
        yield f"notifications to {name} are not delivered: {why}"
    for name, why in sorted(state.unshipped.items()):
        yield f"incidents are not shipped to {name}: {why}"

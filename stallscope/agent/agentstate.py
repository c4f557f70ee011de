# SPDX-License-Identifier: Apache-2.0
"""What one agent keeps for the next one at the same server. A pass of ``stallscope cron`` goes on
where the pass before it ended; every other agent takes since when nothing is known.
"""

from __future__ import annotations

import contextlib

import msgspec

from stallscope.agent.loop import Agent
from stallscope.agent.sight import Known
from stallscope.base import atomicfile, host
from stallscope.base.errors import StallscopeError
from stallscope.store import files
from stallscope.store.records import DAMAGE, encode
from stallscope.store.serverstate import STATE, ServerState

__all__ = ["load", "save"]

_MAX_STATE = 4 << 20


class _State(msgspec.Struct):
    boot: str
    known: dict[str, Known] = {}
    """Source of what is known of the server → when it was known last."""
    fired: dict[str, int] = {}
    """Trigger → when it fired last, by CLOCK_MONOTONIC."""
    baselines: dict[str, list[tuple[float, ...]]] = {}
    """Trigger → its baselines."""
    schema: str = "stallscope.cron/1"


def load(server: ServerState, agent: Agent, *, continues: bool) -> None:
    """Restore the state of the agent before. ``continues``: it was a pass of cron, as this is one;
    then also the rest, unless the machine was booted since."""
    with contextlib.suppress(OSError, StallscopeError, *DAMAGE):
        with files.folder(server.path) as inside:
            data = files.read(STATE, inside, _MAX_STATE)
        state = msgspec.json.decode(data, type=_State)
        agent.sight.restore(state.known)
        # Times of CLOCK_MONOTONIC are comparable within one boot only.
        if continues and state.boot == host.boot_id():
            agent.engine.restore_baselines(state.baselines)
            agent.incidents.last_fired.update(state.fired)


def save(server: ServerState, agent: Agent) -> None:
    """Save the state for the next agent. Raises: StallscopeError."""
    state = _State(
        boot=host.boot_id(),
        known=agent.sight.known(),
        fired=dict(agent.incidents.last_fired),
        baselines=agent.engine.baselines(),
    )
    atomicfile.write(server.path / STATE, [encode(state), b"\n"], force=True)

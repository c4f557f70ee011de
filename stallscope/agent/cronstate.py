# SPDX-License-Identifier: Apache-2.0
"""The state that one run of ``stallscope cron`` saves for the next run at the same server."""

from __future__ import annotations

import contextlib

import msgspec

from stallscope.agent.loop import Agent
from stallscope.base import atomicfile, host
from stallscope.base.errors import StallscopeError
from stallscope.store import files
from stallscope.store.records import DAMAGE, encode
from stallscope.store.serverstate import CRON_STATE, ServerState

__all__ = ["load", "save"]

_MAX_STATE = 4 << 20


class _State(msgspec.Struct):
    boot: str
    fired: dict[str, int] = {}
    """Trigger → when it fired last, by CLOCK_MONOTONIC."""
    baselines: dict[str, list[tuple[float, ...]]] = {}
    """Trigger → its baselines."""
    schema: str = "stallscope.cron/1"


def load(server: ServerState, agent: Agent) -> None:
    """Restore the state of the previous run, unless the machine was booted since."""
    with contextlib.suppress(OSError, StallscopeError, *DAMAGE):
        with files.folder(server.path) as inside:
            data = files.read(CRON_STATE, inside, _MAX_STATE)
        state = msgspec.json.decode(data, type=_State)
        # Times of CLOCK_MONOTONIC are comparable within one boot only.
        if state.boot == host.boot_id():
            agent.engine.restore_baselines(state.baselines)
            agent.incidents.last_fired.update(state.fired)


def save(server: ServerState, agent: Agent) -> None:
    """Save the state for the next run. Raises: StallscopeError."""
    state = _State(
        boot=host.boot_id(), fired=agent.incidents.last_fired, baselines=agent.engine.baselines()
    )
    atomicfile.write(server.path / CRON_STATE, [encode(state), b"\n"], force=True)

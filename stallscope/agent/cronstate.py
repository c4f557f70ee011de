# SPDX-License-Identifier: Apache-2.0
"""The state that one run of ``stallscope cron`` saves for the next."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from stallscope.agent.loop import Agent
from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.store import locking

__all__ = ["load", "lock", "save"]

_LOCK = "cron.lock"
_STATE = "state.json"
_MAX_STATE = 4 << 20


class _State(msgspec.Struct):
    boot: str
    fired: dict[str, int] = {}
    """Trigger → when it fired last, by CLOCK_MONOTONIC."""
    baselines: dict[str, list[tuple[float, ...]]] = {}
    """Trigger → its baselines."""
    schema: str = "stallscope.cron/1"


def lock(dest: Path) -> locking.Held:
    """Make sure that this is the only run. Raises: Locked."""
    path = dest / _LOCK
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return locking.take(path)
    except OSError as error:
        raise StallscopeError(f"cannot lock {path}: {error.strerror}") from error


def load(dest: Path, agent: Agent) -> None:
    """Restore the state of the previous run, unless the machine was booted since."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        with (dest / _STATE).open("rb") as file:
            state = msgspec.json.decode(file.read(_MAX_STATE), type=_State)
        if state.boot == _boot():
            agent.engine.restore_baselines(state.baselines)
            agent.incidents.last_fired.update(state.fired)


def save(dest: Path, agent: Agent) -> None:
    """Save the state for the next run. Raises: StallscopeError."""
    state = _State(
        boot=_boot(), fired=agent.incidents.last_fired, baselines=agent.engine.baselines()
    )
    atomicfile.write(dest / _STATE, [msgspec.json.encode(state), b"\n"], force=True)


def _boot() -> str:
    """Return the id of this boot: times of CLOCK_MONOTONIC are comparable within one boot only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

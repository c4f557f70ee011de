# SPDX-License-Identifier: Apache-2.0
"""Read what connections run by a calibration, with the probe's own reader."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stallscope.collectors.calibration import stored
from stallscope.collectors.calibration.memory import Memory
from stallscope.collectors.calibration.stored import Calibration
from stallscope.model import memorysessions
from stallscope.model.sessions import Moment, Session

__all__ = ["Checked", "check", "read_sessions"]


class Checked(msgspec.Struct, frozen=True):
    """What a kept calibration gives for a process."""

    connections: int
    """Those that were read; without any nothing was checked."""
    misfit: str | None = None
    """Why it does not fit."""


def read_sessions(memory: Memory, layout: Mapping[str, int]) -> tuple[Session, ...]:
    """Return what the connections of a process run now, by the probe's own reader.

    Raises: ProbeError.
    """
    moments = _read(memory, layout)
    return moments[0].sessions if moments else ()


def _read(memory: Memory, layout: Mapping[str, int]) -> tuple[Moment, ...]:
    return memorysessions.decode(memory.sessions(stored.text(layout)).splitlines())


def check(memory: Memory, calibration: Calibration) -> Checked:
    """Try a kept calibration on a process. Asks no SQL. Raises: ProbeError."""
    moments = _read(memory, calibration.layout)
    count = len(moments[0].sessions) if moments else 0
    return Checked(count, memorysessions.misfit(moments))

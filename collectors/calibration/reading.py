# SPDX-License-Identifier: Apache-2.0
"""Read what connections run by a calibration, with the probe's own reader."""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.collectors import probe
from stallscope.collectors.calibration import stored
from stallscope.collectors.calibration.stored import Calibration
from stallscope.model import memorysessions
from stallscope.model.sessions import Moment, Session

__all__ = ["check", "read_sessions"]

_LEAST_VALID = 0.5
"""The least share of threads with an object that look like connections, where no SQL helps."""


def read_sessions(pid: int, layout: Mapping[str, int], seconds: float) -> tuple[Session, ...]:
    """Return what the connections of a process run now, by the probe's own reader.

    Raises: ProbeError.
    """
    moments = _read(pid, layout, seconds)
    return moments[0].sessions if moments else ()


def _read(pid: int, layout: Mapping[str, int], seconds: float) -> tuple[Moment, ...]:
    args = ["sessions", "--pid", str(pid), "--layout", stored.text(layout)]
    data = probe.run(args, seconds=max(0.1, seconds))
    return memorysessions.decode(data.splitlines())


def check(pid: int, calibration: Calibration, seconds: float = 1.0) -> str | None:
    """Return why a kept calibration does not fit the process, None where it does. Asks no SQL."""
    moments = _read(pid, calibration.layout, seconds)
    valid = len(moments[0].sessions) if moments else 0
    rejected = moments[0].rejected if moments else 0
    if valid < _LEAST_VALID * (valid + rejected):
        return f"{rejected} of {valid + rejected} threads have no connection where it says"
    numbers = [session.connection for session in moments[0].sessions] if moments else []
    if len(numbers) != len(set(numbers)):
        return "several threads have the same connection"
    return None

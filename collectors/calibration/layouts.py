# SPDX-License-Identifier: Apache-2.0
"""Where the build that a process runs keeps its connections and its locks: ``--layout`` for the
probe. This is the one place that puts it together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors.calibration import reading, stored
from stallscope.collectors.calibration.build import build_of
from stallscope.collectors.calibration.memory import open_memory
from stallscope.collectors.calibration.stored import Calibration
from stallscope.collectors.processes import Server
from stallscope.model import memorysessions
from stallscope.server.families import family

__all__ = ["FAMILIES", "TargetLayout", "of_process", "of_servers"]

FAMILIES = ("mysql", "mariadb")
"""Servers of which the layout is calibrated; PostgreSQL exports what is needed."""
SECONDS = 5.0
"""To identify the program: milliseconds on most hosts, and 0.7 s with 12 busy threads for a CPU."""


class TargetLayout(msgspec.Struct, frozen=True):
    """What is known of one process."""

    layout: dict[str, int]
    build: str | None = None
    calibration: Calibration | None = None
    connections: int = 0
    """Those that were read to check it."""
    reason: str | None = None
    """Why connections cannot be read from memory."""

    @property
    def note(self) -> str | None:
        """Return what a capture says where it cannot be known whether the build is calibrated."""
        if self.reason is None or self.build is not None:
            return None
        return f"no connections from memory: {self.reason}"

    @property
    def text(self) -> str:
        """Return it as the probe's ``--layout`` takes it."""
        return stored.text(self.layout)


def of_process(pid: int, *, checked: bool = False) -> TargetLayout:
    """Return what is known of the build that the process runs. ``checked``: a kept calibration is
    tried on the process first, without SQL."""
    try:
        with open_memory(pid, SECONDS) as memory:
            build = build_of(memory)
            if build is None:
                return TargetLayout({}, reason="the program cannot be identified")
            calibration = stored.load(build)
            if calibration is None:
                return TargetLayout({}, build, reason="this build is not calibrated")
            found = reading.check(memory, calibration) if checked else reading.Checked(0)
    except StallscopeError as error:
        return TargetLayout({}, reason=str(error))
    if found.misfit is not None:
        return TargetLayout({}, build, reason=f"{memorysessions.MISFIT}: {found.misfit}")
    return TargetLayout(dict(calibration.layout), build, calibration, found.connections)


def of_servers(servers: Sequence[Server]) -> TargetLayout:
    """Return the layout of the one MySQL or MariaDB server among these; nothing where there are
    several, as one capture has one layout."""
    found = [one for one in servers if family(one.main.exe, one.main.comm) in FAMILIES]
    if len(found) != 1:
        return TargetLayout({})
    return of_process(found[0].main.pid)

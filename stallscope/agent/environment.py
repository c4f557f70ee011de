# SPDX-License-Identifier: Apache-2.0
"""What surrounds the agent's loop, and how long it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from stallscope.agent.backends import CaptureBackend
from stallscope.agent.events import Put
from stallscope.agent.sources import Sources
from stallscope.collectors.processes import Server
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.model.incident import Incident
from stallscope.model.waitlines import WaitLine

__all__ = ["Environment", "Plan"]


class Environment(Protocol):
    """The world around the loop."""

    def sources(self, server: Server, settings: AgentSettings) -> Sources: ...

    def backend(self, settings: AgentSettings, put: Put) -> CaptureBackend: ...

    def reload(self) -> AgentSettings:
        """Read the triggers file again. Raises: StallscopeError."""

    def notify(self, event: str, incident: Incident | None, folder: Path | None) -> None:
        """Notify of ``start``, ``fire``, ``stall``, ``end`` and ``stop``."""

    def count_waits(self, line: WaitLine) -> None:
        """Count the waits of a line."""

    def publish(self, metrics: bytes) -> None:
        """Publish the agent's own metrics; called in the writer's thread."""

    def failures(self) -> Mapping[str, int]:
        """Return what failed out there, and how often."""


class Plan(msgspec.Struct, frozen=True):
    """How long the agent runs, and what it does not do."""

    seconds: float | None = None
    """None: until a signal ends it."""
    polls: int | None = None
    """End after so many."""
    captures: bool = True
    """False: nothing is captured, whatever fires."""
    poll_interval: float | None = None
    """Overrules that of the triggers file."""
    raw_sql: bool = False

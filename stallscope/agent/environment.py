# SPDX-License-Identifier: Apache-2.0
"""What the agent's loop needs from its caller, and how long it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from stallscope.agent.backends import CaptureBackend
from stallscope.agent.events import Put
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.sources import Sources
from stallscope.collectors.processes import Server
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.fleet.shipping.shipper import Shipper
from stallscope.model.incident import Incident, TargetEntry
from stallscope.model.waitlines import WaitLine
from stallscope.notify.alerts import Alerts

__all__ = ["Environment", "Kept", "Plan"]


class Environment(Protocol):
    """What the loop needs from its caller."""

    def sources(
        self, server: Server, settings: AgentSettings, use_layout: Callable[[str], None]
    ) -> Sources:
        """Return the sources of a server; ``use_layout`` takes where it keeps its connections."""

    def backend(self, settings: AgentSettings, put: Put) -> CaptureBackend: ...

    def reload(self) -> AgentSettings:
        """Read the triggers file again. Raises: StallscopeError."""

    def alerts(self) -> Alerts:
        """Return what notifies of the stalls; its destinations change with ``reload``."""

    def shipper(self) -> Shipper:
        """Return what ships incidents; its destinations change with ``reload``."""

    def notify(self, event: str, incident: Incident | None, folder: Path | None) -> None:
        """Print ``stall`` and ``end``; run the hooks of ``start``, ``fire``, ``end`` and
        ``stop``."""

    def count_waits(self, line: WaitLine) -> None:
        """Count the waits of a line."""

    def publish(self, metrics: AgentMetrics) -> Callable[[], None] | None:
        """Publish the agent's own metrics as they are now. Return what writes them to a disk, for
        the writer's thread; None: nothing does."""

    def failures(self) -> Mapping[str, int]:
        """Return which outputs failed, and how often."""


class Kept(msgspec.Struct):
    """What is kept of a server from one agent to the next."""

    was: TargetEntry | None = None
    """The process that an agent before this one watched last."""
    on_server: Callable[[TargetEntry], None] = lambda target: None
    """Called with each process of the server, by the writer's thread."""
    on_blind: Callable[[], None] = lambda: None
    """Called when the agent begins or ends to be blind, by the writer's thread."""


class Plan(msgspec.Struct, frozen=True):
    """How long the agent runs, and whether it captures."""

    seconds: float | None = None
    """None: until a signal ends it."""
    polls: int | None = None
    """End after this many polls."""
    captures: bool = True
    """False: triggers fire without captures."""
    poll_interval: float | None = None
    """Overrides that of the triggers file."""
    raw_sql: bool = False

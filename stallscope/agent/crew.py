# SPDX-License-Identifier: Apache-2.0
"""Whom captures need: somebody who takes them, and somebody who knows the server."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from stallscope.agent.incidents import OpenIncident
from stallscope.model.incident import Incident, TargetEntry

__all__ = ["Camera", "Crew"]


class Camera(Protocol):
    """Something that takes captures; a CaptureResult with the key follows."""

    def capture(self, key: str, path: Path) -> None: ...


class Crew(Protocol):
    """Whom the captures need; the loop has them."""

    def ask_sessions(self, key: str) -> str | None:
        """Ask the server what its connections do; a QueryResult with the key follows.

        Return why it cannot be asked, None where it was.
        """

    def ask_texts(self, key: str) -> bool:
        """Ask the server for its texts; a QueryResult follows. False: it is not asked."""

    def before(self, incident: OpenIncident) -> None:
        """Give the incident the minute before it."""

    def target(self) -> TargetEntry: ...

    def announce(self, incident: Incident, folder: Path, event: str) -> None:
        """Tell the world: ``event`` is ``fire``, ``stall`` or ``end``."""

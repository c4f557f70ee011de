# SPDX-License-Identifier: Apache-2.0
"""The captures of an incident, each from its request to its verdict."""

from __future__ import annotations

import enum

import msgspec

from stallscope.base.backoff import Backoff
from stallscope.model.incident import CaptureEntry
from stallscope.model.sessions import Moment, Sessions, from_memory

__all__ = ["Burst", "Capture", "Step"]

NO_ANSWER = "the server did not answer"


class Step(enum.Enum):
    """How far one capture of an incident has come."""

    REQUESTED = "requested"
    STORING = "storing"
    STORED = "stored"
    ANALYZING = "analyzing"
    ANALYZED = "analyzed"
    FAILED = "failed"


class Capture(msgspec.Struct):
    """One capture of an incident, from the request to its verdict."""

    key: str
    reason: str
    trigger: str | None
    breach_ns: int
    """CLOCK_MONOTONIC."""
    time_ns: int
    """Wall clock, when it was asked for."""
    step: Step = Step.REQUESTED
    entry: CaptureEntry | None = None
    """Once it is in the incident's folder."""
    sessions: Sessions | None = None
    sessions_due: bool = True
    """The server was asked for its sessions, and the answer is still open."""
    no_sessions: str | None = None
    memory: tuple[Moment, ...] = ()
    """What the connections ran, as the server's memory has it."""

    @property
    def known_sessions(self) -> Sessions | None:
        """Return what is known of its connections, over SQL and from memory."""
        if self.sessions is not None:
            return msgspec.structs.replace(self.sessions, memory=self.memory)
        if self.memory:
            return from_memory(self.memory, self.no_sessions or NO_ANSWER)
        return None

    @property
    def settled(self) -> bool:
        """Return whether it can be analyzed."""
        taken = self.step not in (Step.REQUESTED, Step.STORING)
        return self.step is Step.FAILED or (taken and not self.sessions_due)

    @property
    def done(self) -> bool:
        """Return whether it is finished."""
        return self.step in (Step.FAILED, Step.ANALYZED)


class Burst(msgspec.Struct):
    """Captures that are still to be taken."""

    left: int
    next_ns: int
    trigger: str
    breach_ns: int
    """Time of the trigger: delays of the burst are counted from here."""
    backoff: Backoff
    """Of failed attempts in a row."""

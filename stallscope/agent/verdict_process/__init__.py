# SPDX-License-Identifier: Apache-2.0
"""The process that names captures for the agent: ``python -m stallscope.agent.verdict_process``.

It reads the captures, which hold what the target had in its memory, and the signatures; the agent
keeps neither. One request a line on standard input, one answer a line on standard output.
"""

from __future__ import annotations

import msgspec

from stallscope.model.incident import Verdict
from stallscope.model.sessions import Sessions

__all__ = ["VerdictAnswer", "VerdictRequest"]


class VerdictRequest(msgspec.Struct, frozen=True):
    """A capture to name; what the server says of its connections goes into the file first."""

    path: str
    sessions: Sessions | None = None


class VerdictAnswer(msgspec.Struct, frozen=True):
    """What one capture shows. No stall: neither a verdict nor an error."""

    path: str
    verdict: Verdict | None = None
    error: str | None = None
    """Why it was not analyzed."""
    sessions: str | None = None
    """Why its threads have no connections."""
    notes: tuple[str, ...] = ()
    """What else the server did not say: who holds its metadata locks, for one."""
    version: str | None = None
    """Of the server."""

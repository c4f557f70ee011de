# SPDX-License-Identifier: Apache-2.0
"""The process that names captures for the agent: ``python -m stallscope.agent.verdict_process``.

It reads captures, which hold data from the target's memory, and the signatures; the agent loads
neither. One request a line on standard input, one answer a line on standard output.
"""

from __future__ import annotations

import msgspec

from stallscope.model.incident import Verdict
from stallscope.model.sessions import Sessions

__all__ = ["VerdictAnswer", "VerdictRequest"]


class VerdictRequest(msgspec.Struct, frozen=True):
    """A capture to name; the server's sessions are written first."""

    path: str
    sessions: Sessions | None = None


class VerdictAnswer(msgspec.Struct, frozen=True):
    """The verdict of one capture. No stall: neither a verdict nor an error."""

    path: str
    verdict: Verdict | None = None
    error: str | None = None
    """Why it was not analyzed."""
    sessions: str | None = None
    """Why its threads have no connections."""
    notes: tuple[str, ...] = ()
    """What else the server did not report, such as the holders of metadata locks."""
    version: str | None = None
    """The server's version."""

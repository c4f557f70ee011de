# SPDX-License-Identifier: Apache-2.0
"""The process that names captures for the agent: ``python -m stallscope.agent.verdict_process``.

It reads captures, which hold data from the target's memory, and the signatures; the agent loads
neither. One request a line on standard input, one answer a line on standard output, and at the end
the verdict of all captures together.
"""

from __future__ import annotations

import msgspec

from stallscope.fleet.facts import Facts
from stallscope.model.incident import Verdict
from stallscope.model.sessions import Sessions

__all__ = ["Answers", "Together", "VerdictAnswer", "VerdictRequest"]


class VerdictRequest(msgspec.Struct, frozen=True):
    """A capture to name; the server's sessions are written first."""

    path: str
    sessions: Sessions | None = None
    known: bool = False
    """It was named before, with its sessions: it counts for the verdict of all."""


class VerdictAnswer(msgspec.Struct, frozen=True, tag="one"):
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


class Together(msgspec.Struct, frozen=True, tag="all"):
    """The verdict of all captures that could be read; no stall: None."""

    together: Verdict | None
    facts: Facts | None = None
    """What a fleet keeps of the same analysis; None: no capture could be read."""


class Answers(msgspec.Struct, frozen=True):
    """The answers of one run: of each capture that is not ``known``, and of all."""

    each: tuple[VerdictAnswer, ...]
    together: Verdict | None = None
    facts: Facts | None = None

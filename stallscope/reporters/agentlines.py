# SPDX-License-Identifier: Apache-2.0
"""The agent's lines about incidents: one line each for people, or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.base.text import one_line, without_surrogates
from stallscope.model.incident import Incident

__all__ = ["SCHEMA", "render", "sentence"]

SCHEMA = "stallscope.agent/1"


def render(event: str, incident: Incident, folder: Path | None, *, as_json: bool) -> Iterator[str]:
    """Yield the lines of an event: for people only that of the stall, not of its end.

    ``folder`` is None where the incident could not be stored.
    """
    if as_json:
        value = {"schema": SCHEMA, "event": event, "path": _path(folder), "incident": incident}
        plain = without_surrogates(msgspec.to_builtins(value))
        yield msgspec.json.encode(plain).decode()
    elif event == "stall":
        yield sentence(incident, folder)


def sentence(incident: Incident, folder: Path | None) -> str:
    """Return the line of an incident for the log."""
    target = incident.target
    fired = incident.triggers[0] if incident.triggers else None
    verdict = incident.verdict
    if verdict is not None:
        name = verdict.signature or "unknown stall"
        what = f"{name} ({verdict.confidence:.2f}), {verdict.threads} threads"
        if verdict.blocker:
            what += f", blocked by {verdict.blocker}"
    elif any(entry.analyzed for entry in incident.captures):
        what = "its captures show no stall"
    else:
        what = "no verdict"
    why = f"; {fired.trigger}: {fired.why}" if fired else ""
    count = len(incident.captures)
    captures = f"{count} capture{'' if count == 1 else 's'}"
    where = "not stored" if folder is None else folder
    interrupted = ", interrupted" if incident.interrupted else ""
    return one_line(
        f"stall: {target.name} (pid {target.pid}): {what}{why}; {captures}{interrupted}: {where}",
        1000,
    )


def _path(folder: Path | None) -> str | None:
    return None if folder is None else str(folder)

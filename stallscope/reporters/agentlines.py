# SPDX-License-Identifier: Apache-2.0
"""The agent's lines about incidents: one line each for people, or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.base.text import one_line, without_surrogates
from stallscope.base.times import rfc3339
from stallscope.model.incident import Incident
from stallscope.reporters.units import duration

__all__ = ["SCHEMA", "over", "render", "sentence"]

SCHEMA = "stallscope.agent/1"


def render(event: str, incident: Incident, folder: Path | None, *, as_json: bool) -> Iterator[str]:
    """Yield the lines of an event: for people those of the stall and of its end.

    ``folder`` is None where the incident could not be stored.
    """
    if as_json:
        value = {"schema": SCHEMA, "event": event, "path": _path(folder), "incident": incident}
        plain = without_surrogates(msgspec.to_builtins(value))
        yield msgspec.json.encode(plain).decode()
    elif event == "stall":
        yield sentence(incident, folder)
    elif event == "end" and incident.end_ns is not None:
        yield over(incident, folder)


def sentence(incident: Incident, folder: Path | None) -> str:
    """Return the line of an incident for the log."""
    target = incident.target
    fired = incident.triggers[0] if incident.triggers else None
    verdict = incident.verdict
    if incident.is_event and fired is not None:
        where = "not stored" if folder is None else folder
        server = f"{target.name} (pid {target.pid})"
        text = f"{_clock(incident.start_ns)} {fired.trigger}: {server}: {fired.why}: {where}"
        return one_line(text, 1000)
    if verdict is not None:
        name = verdict.signature or "unknown stall"
        what = f"{name} ({verdict.confidence:.2f}), {verdict.threads} threads"
        if verdict.blocker:
            what += f", blocked by {verdict.blocker}"
        if verdict.ending:
            what += f"; to end it: {verdict.ending.rstrip(';')}"
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
        f"{_clock(incident.start_ns)} stall: {target.name} (pid {target.pid}): {what}{why};"
        f" {captures}{interrupted}: {where}",
        1000,
    )


def over(incident: Incident, folder: Path | None) -> str:
    """Return the line of an incident's end for the log; its stall may go on."""
    target, end_ns = incident.target, incident.end_ns or incident.start_ns
    name = (incident.verdict.signature or "unknown stall") if incident.verdict else "no verdict"
    if incident.is_event:
        name = incident.triggers[0].trigger
    lasted = duration(max(0, end_ns - incident.start_ns) / 1e6)
    where = "not stored" if folder is None else folder
    server = f"{target.name} (pid {target.pid})"
    head, how = "over", f"lasted {lasted}"
    if incident.is_unfinished:
        head, how = "no longer recorded", f"after {lasted}, without its end"
    return one_line(f"{_clock(end_ns)} {head}: {server}: {name}, {how}: {where}", 1000)


def _clock(time_ns: int) -> str:
    """Return the moment as the log's other lines have it: in UTC, to the millisecond."""
    return f"{rfc3339(time_ns)[:-4]}Z"


def _path(folder: Path | None) -> str | None:
    return None if folder is None else str(folder)

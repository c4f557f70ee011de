# SPDX-License-Identifier: Apache-2.0
"""The environment of commands and hooks: ``STALLSCOPE_…``."""

from __future__ import annotations

from pathlib import Path

from stallscope.base.encoding import variable
from stallscope.base.text import one_line
from stallscope.model.incident import Incident
from stallscope.notify.alert import Alert, Event

__all__ = ["of_alert", "of_incident"]


def of_alert(event: Event, alert: Alert) -> dict[str, str]:
    """Return the variables of a notification."""
    path = None if alert.path is None else Path(alert.path)
    more = {
        "STALLSCOPE_KEY": f"{alert.key}#{event}",
        "STALLSCOPE_SEVERITY": alert.severity,
        "STALLSCOPE_LINK": alert.link or "",
    }
    found = {**of_incident(event, alert.incident, path), **more}
    return {name: variable(value) for name, value in found.items()}


def of_incident(event: str, incident: Incident | None, folder: Path | None) -> dict[str, str]:
    """Return the variables of an event."""
    if incident is None:
        return {"STALLSCOPE_EVENT": event}
    verdict = incident.verdict
    fired = incident.triggers[0] if incident.triggers else None
    found = {
        "EVENT": event,
        "INCIDENT": incident.id,
        "PATH": "" if folder is None else str(folder),
        "SERVER": incident.target.name,
        "PID": str(incident.target.pid),
        "TRIGGER": fired.trigger if fired else "",
        "WHY": one_line(fired.why) if fired else "",
        "CAPTURES": str(len(incident.captures)),
        "VERDICT": (verdict.signature or "unknown") if verdict else "",
        "TITLE": verdict.title if verdict else "",
        "CONFIDENCE": f"{verdict.confidence:.2f}" if verdict else "",
        "BLOCKER": (verdict.blocker or "") if verdict else "",
        "ENDING": (verdict.ending or "") if verdict else "",
        "EFFECT": (verdict.effect or "") if verdict else "",
        "LINES": "\n".join(verdict.lines) if verdict else "",
        "STATEMENT": (verdict.statement or "") if verdict else "",
    }
    return {f"STALLSCOPE_{name}": variable(value) for name, value in found.items()}

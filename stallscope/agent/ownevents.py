# SPDX-License-Identifier: Apache-2.0
"""Events that are no stalls (model.incident.EVENTS), as incidents without captures."""

from __future__ import annotations

from stallscope.model.incident import Fired, Incident, TargetEntry
from stallscope.store import incident_id

__all__ = ["event"]


def event(fired: Fired, target: TargetEntry) -> Incident:
    """Return an event as it is stored: over at once, for only its alert goes on."""
    time_ns = fired.time_ns
    name = incident_id(time_ns, target.name, target.pid)
    return Incident(name, time_ns, target, end_ns=time_ns, triggers=(fired,))

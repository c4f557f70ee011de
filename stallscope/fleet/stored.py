# SPDX-License-Identifier: Apache-2.0
"""From an incident of a store to its rows; its captures are analyzed as the agent does it."""

from __future__ import annotations

import msgspec

from stallscope.analyzers import engine
from stallscope.analyzers.catalog import Catalog
from stallscope.base.errors import StallscopeError
from stallscope.fleet.analysis import facts_of
from stallscope.fleet.facts import Facts
from stallscope.fleet.rows import rows_of
from stallscope.fleet.tables import Row
from stallscope.model.capture import Capture
from stallscope.store.reading import StoredIncident

__all__ = ["MAX_THREADS", "rows_of_stored"]

MAX_THREADS = 200_000
"""The most threads, counted in each capture: all are in memory at once."""


def rows_of_stored(
    stored: StoredIncident, signatures: Catalog, *, host: str = "", redact: bool = False
) -> list[Row]:
    """Return the rows of an incident of a store.

    Captures that are gone or damaged are left out; without any, the row has what the incident
    itself says. The rows are made the same however often that is done, and their revision is that
    of the moment at which the incident ended: what its agent shipped later counts more.
    """
    incident = stored.incident
    if incident.end_ns is None and not stored.going_on:
        incident = msgspec.structs.replace(incident, interrupted=True)
    ended_ns = incident.start_ns if incident.end_ns is None else incident.end_ns
    return rows_of(
        incident,
        _facts(stored, signatures),
        stored.samples(),
        made_ms=ended_ns // 1_000_000,
        host=host,
        redact=redact,
    )


def _facts(stored: StoredIncident, signatures: Catalog) -> Facts | None:
    captures: list[Capture] = []
    threads = 0
    for one in stored.captures():
        if one.capture is None:
            continue
        threads += sum(len(moment.threads) for moment in one.capture.moments)
        if threads > MAX_THREADS:
            break
        captures.append(one.capture)
    if not captures:
        return None
    try:
        return facts_of(engine.analyze_together(captures, signatures))
    except (StallscopeError, MemoryError):
        return None

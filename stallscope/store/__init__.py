# SPDX-License-Identifier: Apache-2.0
"""The store of incidents, docs/store.md.

The agent writes: ``Store.open(dest)``, ``store.begin(incident)``, then the methods of
``IncidentFolder``. Commands read: ``listing(dest)`` for all incidents, ``read_incident(folder)``
for one.
"""

from __future__ import annotations

from stallscope.store.deadlocks import read_all as read_deadlocks
from stallscope.store.index import Listing, Summary, listing
from stallscope.store.layout import default_dest, incident_id, reading_dest
from stallscope.store.reading import StoredCapture, StoredIncident, read_incident
from stallscope.store.retention import DiskGuard, Pruned, Retention
from stallscope.store.store import Store
from stallscope.store.writing import IncidentFolder

__all__ = [
    "DiskGuard",
    "IncidentFolder",
    "Listing",
    "Pruned",
    "Retention",
    "Store",
    "StoredCapture",
    "StoredIncident",
    "Summary",
    "default_dest",
    "incident_id",
    "listing",
    "read_deadlocks",
    "read_incident",
    "reading_dest",
]

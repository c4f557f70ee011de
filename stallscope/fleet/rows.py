# SPDX-License-Identifier: Apache-2.0
"""From an incident to its rows; a pure function, for agents and for stores."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.fleet.facts import Facts
from stallscope.fleet.tables import Row
from stallscope.model.incident import Incident
from stallscope.model.samples import Sample

__all__ = ["rows_of"]


def rows_of(
    incident: Incident,
    facts: Facts | None,
    samples: Sequence[Sample] = (),
    *,
    made_ms: int,
    host: str = "",
    redact: bool = False,
) -> list[Row]:
    """Return the rows of an incident: one of ``incidents``, and its stacks.

    ``facts``: None where nothing was analyzed (yet). ``samples``: empty where they are not read
    yet. ``made_ms``: now; part of the revision. ``host``: its name in the fleet, where that is not
    its own. ``redact``: replace names too.
    """
    raise NotImplementedError

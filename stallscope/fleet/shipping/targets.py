# SPDX-License-Identifier: Apache-2.0
"""From settings to where an agent ships to."""

from __future__ import annotations

from stallscope.fleet.settings import ShipSettings, addresses
from stallscope.fleet.shipping.shipper import Target

__all__ = ["targets"]


def targets(settings: ShipSettings) -> list[Target]:
    """Return the destinations; nothing is connected yet. Raises: UsageError."""
    found = addresses(settings)
    if not found:
        return []
    from stallscope.fleet.engines import opening  # most agents ship nothing

    return [
        Target(address, opening.destination(address, ca_file=settings.ca_file)) for address in found
    ]

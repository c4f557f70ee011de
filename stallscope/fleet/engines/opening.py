# SPDX-License-Identifier: Apache-2.0
"""From an address to its engine."""

from __future__ import annotations

from stallscope.fleet.address import Address
from stallscope.fleet.destination import Destination, Engine

__all__ = ["destination", "engine"]


def destination(address: Address, *, ca_file: str = "") -> Destination:
    """Return where batches are shipped to; nothing is connected yet."""
    raise NotImplementedError


def engine(address: Address, *, ca_file: str = "") -> Engine:
    """Return what answers questions. Raises: EngineError where it is not there."""
    raise NotImplementedError

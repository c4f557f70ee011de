# SPDX-License-Identifier: Apache-2.0
"""From an address to its engine."""

from __future__ import annotations

from stallscope.base import extras
from stallscope.base.errors import StallscopeError
from stallscope.fleet.address import Address
from stallscope.fleet.destination import Destination, Engine, EngineError
from stallscope.fleet.engines.clickhouse import ClickHouse, ClickHouseDestination
from stallscope.fleet.engines.folder import FolderDestination

__all__ = ["destination", "engine"]


def destination(address: Address, *, ca_file: str = "") -> Destination:
    """Return where batches are shipped to; nothing is connected yet."""
    if address.path is not None:
        return FolderDestination(address.path)
    return ClickHouseDestination(address, ca_file=ca_file)


def engine(address: Address, *, ca_file: str = "") -> Engine:
    """Return what answers questions. Raises: EngineError where it is not there."""
    if address.path is None:
        return ClickHouse(address, ca_file=ca_file)
    try:
        extras.require("parquet", "a folder as engine")
    except StallscopeError as error:
        raise EngineError(str(error)) from None
    from stallscope.fleet.engines.duckdbengine import DuckDBEngine

    return DuckDBEngine(address.path)

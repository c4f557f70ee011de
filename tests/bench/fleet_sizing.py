# SPDX-License-Identifier: Apache-2.0
"""What fleets of some sizes need, calculated from measured rows: docs/fleet-sizing.md."""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.fleet.tables import TABLES
from tests.bench.stats import Row, Section, number
from tests.support.fleet.simulated import WAIT_KINDS

__all__ = ["a_day", "in_bytes", "sizing_section"]

HOSTS = (10, 100, 1_000, 10_000, 100_000)
INCIDENTS_A_DAY = 14 * 24
WAITS_A_DAY = 1440 * len(WAIT_KINDS)
SENDS_AN_HOUR = 60 + 2 * 14 + 6


def a_day(row_bytes: Mapping[str, float]) -> float:
    """Return the bytes of a host and day, of one replica."""
    return (
        INCIDENTS_A_DAY * row_bytes.get("incidents", 0.0)
        + WAITS_A_DAY * row_bytes.get("waits", 0.0)
        + row_bytes.get("agents", 0.0)
    )


def sizing_section(row_bytes: Mapping[str, float]) -> Section:
    """Return the table: sends, and bytes of a day and of all that is kept."""
    days = {name: table.days for name, table in TABLES.items()}
    kept = (
        days["incidents"] * INCIDENTS_A_DAY * row_bytes.get("incidents", 0.0)
        + days["waits"] * WAITS_A_DAY * row_bytes.get("waits", 0.0)
        + days["agents"] * row_bytes.get("agents", 0.0)
    )
    rows = [
        Row(
            f"{hosts} hosts",
            {
                "sends a second": number(round(hosts * SENDS_AN_HOUR / 3600, 1)),
                "incidents a day": str(hosts * INCIDENTS_A_DAY),
                "a day, one replica": in_bytes(hosts * a_day(row_bytes)),
                "kept, one replica": in_bytes(hosts * kept),
            },
        )
        for hosts in HOSTS
    ]
    shown = ", ".join(f"{name} {size:.1f} B" for name, size in sorted(row_bytes.items()))
    return Section(
        "growth-sizes",
        "What a fleet ships and keeps, calculated",
        tuple(rows),
        notes=(
            f"bytes of a row on disk, measured: {shown}",
            f"kept: {days['incidents']} days of incidents, {days['waits']} of waits",
        ),
    )


def in_bytes(value: float) -> str:
    """Return bytes for people."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB")):
        if value >= limit:
            return f"{value / limit:.2f} {unit}"
    return f"{value / 1e6:.1f} MB"

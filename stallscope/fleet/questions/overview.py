# SPDX-License-Identifier: Apache-2.0
"""What a page of a fleet shows besides the answers to the named questions: sums, hosts by time, and
the incidents behind each number, all of them limited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.sqltext import among, during

__all__ = ["HOSTS", "LISTED", "SIMULATED", "Overview", "overview", "step_of"]

HOSTS = 40
"""Rows of the heat map; the other hosts are summed in one more."""
LISTED = 20
"""Incidents that are listed of each signature, host and group."""
SIMULATED = "simulated"
"""What is in ``agent_version`` of an incident that was made up: what shows it says so."""
_GROUPS = 200
"""Signatures, and shapes of stalls without a name, whose incidents are listed at most."""
_COLUMNS = 49
_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_STEPS = (5 * _MINUTE, 15 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, _DAY, 7 * _DAY)
_OF_LIST = (
    *("uid", "id", "host", "start_ms", "seconds", "is_open", "signature", "shape", "version"),
    *("blocker", "statement"),
)
_STALLED = "coalesce(seconds, 0)"


class Overview(msgspec.Struct, frozen=True):
    """Rows as the engine has them. Stalled time is of incidents whose end is known."""

    totals: dict[str, Any]
    """``incidents``, ``hosts``, ``stalled`` (seconds), ``unended``, ``simulated``."""
    hosts: list[dict[str, Any]]
    """``host``, ``incidents``, ``stalled``: those with the most stalled time, the first first."""
    cells: list[dict[str, Any]]
    """``host``, ``at_ms``, ``incidents``, ``stalled``, ``longest`` (signature of the longest)."""
    all_cells: list[dict[str, Any]]
    """The same of all hosts together, with the number of ``hosts``."""
    by_signature: list[dict[str, Any]]
    by_host: list[dict[str, Any]]
    by_shape: list[dict[str, Any]]
    """Incidents; of each signature and group the latest, of each host the longest."""


def step_of(since_ms: int, until_ms: int) -> int:
    """Return the width of a column of the heat map, in ms: a round time, few columns."""
    wanted = max(1, until_ms - since_ms) / (_COLUMNS - 1)
    for step in _STEPS:
        if step >= wanted:
            return step
    week = _STEPS[-1]
    return week * -(-int(wanted) // week)


def overview(
    engine: Engine,
    since_ms: int,
    until_ms: int,
    *,
    signatures: Sequence[str],
    shapes: Sequence[str],
) -> Overview:
    """Ask for everything. ``signatures``, ``shapes``: those whose incidents are listed.

    Raises: EngineError.
    """
    engine.restrict(since_ms, until_ms)
    asking = _Asking(engine, since_ms, until_ms)
    hosts = asking.hosts()
    names = [str(row["host"]) for row in hosts]
    return Overview(
        asking.totals(),
        hosts,
        asking.cells("host", names),
        asking.cells("", ()),
        asking.listed("signature", signatures, "start_ms DESC, uid"),
        asking.listed("host", names, f"{_STALLED} DESC, start_ms DESC, uid"),
        asking.listed("shape", shapes, "start_ms DESC, uid"),
    )


class _Asking:
    def __init__(self, engine: Engine, since_ms: int, until_ms: int) -> None:
        self._engine = engine
        self._dialect = engine.dialect
        self._when = during(self._dialect, since_ms, until_ms)
        self._step = step_of(since_ms, until_ms)

    def _of(self, columns: Sequence[str], column: str = "", values: Sequence[str] = ()) -> str:
        where = self._when
        if column:
            where += f" AND {among(self._dialect, column, values)}"
        return self._dialect.table("incidents", columns, where)

    def totals(self) -> dict[str, Any]:
        source = self._of(("host", "seconds", "agent_version"))
        made_up = self._dialect.text(f"%{SIMULATED}%")
        found = self._engine.rows(
            "SELECT count(*) AS incidents, count(DISTINCT host) AS hosts,"
            f" sum({_STALLED}) AS stalled, count(*) - count(seconds) AS unended,"
            f" sum(if(agent_version LIKE {made_up}, 1, 0)) AS simulated FROM {source} AS t"
        )
        return found[0] if found else {}

    def hosts(self) -> list[dict[str, Any]]:
        source = self._of(("host", "seconds"))
        return self._engine.rows(
            f"SELECT host, count(*) AS incidents, sum({_STALLED}) AS stalled FROM {source} AS t"
            f" GROUP BY host ORDER BY stalled DESC, incidents DESC, host LIMIT {HOSTS}"
        )

    def cells(self, column: str, hosts: Sequence[str]) -> list[dict[str, Any]]:
        if column and not hosts:
            return []
        source = self._of(("host", "start_ms", "seconds", "signature"), column, hosts)
        at = self._dialect.floor("start_ms", self._step)
        key = f"{column}, at_ms" if column else "at_ms"
        more = f"{column}, " if column else "count(DISTINCT host) AS hosts, "
        return self._engine.rows(
            f"SELECT {more}{at} AS at_ms, count(*) AS incidents, sum({_STALLED}) AS stalled,"
            f" argMax(signature, {_STALLED}) AS longest FROM {source} AS t"
            f" GROUP BY {key} ORDER BY {key}"
        )

    def listed(self, column: str, values: Sequence[str], order: str) -> list[dict[str, Any]]:
        if not values:
            return []
        source = self._of(_OF_LIST, column, values[:_GROUPS])
        first = self._dialect.first(source, _OF_LIST, column, order, LISTED)
        return self._engine.rows(f"SELECT {', '.join(_OF_LIST)} FROM {first} AS t ORDER BY {order}")

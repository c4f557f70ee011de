# SPDX-License-Identifier: Apache-2.0
"""What a server's status numbers say of its load, and when to worry.

Two samples of a server become rows: a number, its rate, what it means, a verdict.
What a server does not count is unknown, and never 0.
"""

from __future__ import annotations

import enum
import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stallscope.server.status import ABSENT, Progress, StatusSample

__all__ = [
    "GROUPS",
    "Report",
    "Row",
    "Rule",
    "Verdict",
    "report",
    "rules",
]

DATA = Path(__file__).resolve().parent / "workload.toml"
GROUPS = {
    "load": "Load",
    "rows": "Rows",
    "reads": "Reads",
    "writes": "Writes",
    "locks": "Locks",
    "aria": "Aria",
    "ddl": "DDL and defragmentation",
    "compression": "Compression",
    "network": "Network",
    "device": "Device of the data directory",
}


class Verdict(enum.StrEnum):
    """How abnormal a row's value is; unknown where it cannot be judged."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row's rule; workload.toml says what the fields mean."""

    id: str
    group: str
    title: str
    kind: str
    of: tuple[str, ...]
    meaning: str
    when: str
    unit: str
    to: tuple[str, ...] = ()
    least: float = 0.0
    warning: float | None = None
    critical: float | None = None
    below: bool = False
    scale: float = 1.0


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


class Row(msgspec.Struct, frozen=True):
    """``value`` is the number or ratio itself, or the counter; ``rate`` is a second's."""

    id: str
    group: str
    title: str
    unit: str
    verdict: Verdict
    value: float | None
    rate: float | None
    meaning: str
    when: str
    note: str | None = None
    """Why it is unknown, or what limits it."""


class Report(msgspec.Struct, frozen=True):
    """The rows of a server's status, over ``seconds``; ``missing``: what is not known, and why."""

    rows: tuple[Row, ...]
    seconds: float
    """Between the samples; the server's uptime for a single sample."""
    since_start: bool
    restarted: bool
    """The server was restarted between the samples: rates are those since then."""
    version: str | None
    progress: tuple[Progress, ...]
    missing: Mapping[str, str]


_ALL_ENGINES = (
    "for all engines: this server has no separate count for InnoDB (this is Handler_read_*)"
)
_HANDLER_READS = tuple(
    f"Handler_read_{how}" for how in ("first", "key", "last", "next", "prev", "rnd", "rnd_next")
)


class _Window(msgspec.Struct, frozen=True):
    """Two samples, the first of which may be the server's start."""

    before: Mapping[str, float]
    now: Mapping[str, float]
    seconds: float
    since_start: bool = False

    def first(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.now), None)

    def grown(self, name: str) -> float | None:
        """Return by how much a counter grew; None where it was set back."""
        before = 0.0 if self.since_start else self.before.get(name)
        if before is None or self.now[name] < before:
            return None
        return self.now[name] - before


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return all rules, in the order in which they are shown."""
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    return msgspec.convert(data, _Rules).rule


def report(first: StatusSample | None, second: StatusSample) -> Report:
    """Judge what a server did between two samples, or since its start where there is one sample."""
    window, restarted = _window(first, second)
    return Report(
        rows=tuple(_row(rule, window, second) for rule in rules()),
        seconds=window.seconds,
        since_start=window.since_start,
        restarted=restarted,
        version=second.version,
        progress=second.progress,
        missing=second.missing,
    )


def _window(first: StatusSample | None, second: StatusSample) -> tuple[_Window, bool]:
    now = _with_sums(second.values)
    uptime = now.get("Uptime", 0.0)
    if first is None:
        return _Window({}, now, uptime, since_start=True), False
    # Uptime goes by the wall clock, which can be set back.
    same = second.session is not None and second.session == first.session
    if uptime < first.values.get("Uptime", 0.0) and not same:
        return _Window({}, now, uptime, since_start=True), True
    if first.clock_s is not None and second.clock_s is not None:
        seconds = second.clock_s - first.clock_s
    else:
        seconds = uptime - first.values.get("Uptime", uptime)
    return _Window(_with_sums(first.values), now, max(0.0, seconds)), False


def _with_sums(values: Mapping[str, float]) -> Mapping[str, float]:
    """Add what is counted in parts: rows read, which MariaDB no longer counts for InnoDB, and the
    size of Aria's page cache."""
    sums: dict[str, float] = {}
    if "Innodb_rows_read" not in values and _HANDLER_READS[0] in values:
        sums["handler.rows_read"] = sum(values.get(name, 0.0) for name in _HANDLER_READS)
    parts = [values.get(f"Aria_pagecache_blocks_{name}") for name in ("used", "unused")]
    if None not in parts:
        sums["aria.blocks"] = sum(part for part in parts if part is not None)
    return {**values, **sums} if sums else values


def _row(rule: Rule, window: _Window, sample: StatusSample) -> Row:
    name = window.first(rule.of)
    if name is None:
        return _unknown(rule, _why_missing(rule, sample))
    if rule.kind == "gauge":
        value = window.now[name] * rule.scale
        return _judged(rule, value, None, value)
    if rule.kind == "share":
        return _share(rule, window, window.now[name], sample)
    if window.seconds <= 0:
        return _unknown(rule, "no time passed between the two samples", window.now[name])
    grown = window.grown(name)
    if grown is None:
        return _unknown(rule, "the counter was reset between the samples", window.now[name])
    if rule.kind == "use":
        return _share(rule, window, grown / window.seconds, sample)
    if rule.kind == "rate":
        rate = grown / window.seconds
        return _judged(rule, window.now[name], rate, rate, _note(name, sample))
    return _ratio(rule, name, grown, window, sample)


def _share(rule: Rule, window: _Window, part: float, sample: StatusSample) -> Row:
    """Return a number, or a rate, as a share of another number as it is now."""
    name = window.first(rule.to)
    if name is None:
        return _unknown(rule, _why_missing(rule, sample))
    if window.now[name] <= 0:
        return _unknown(rule, f"{name} is 0: nothing to compare with")
    value = part / window.now[name]
    return _judged(rule, value, None, value)


def _ratio(rule: Rule, of: str, grown: float, window: _Window, sample: StatusSample) -> Row:
    name = window.first(rule.to)
    if name is None:
        return _unknown(rule, _why_missing(rule, sample))
    base = window.grown(name)
    if base is None:
        return _unknown(rule, "the counter was reset between the samples")
    if base == 0:
        return _unknown(rule, f"{name} did not grow: nothing to compare with")
    value = grown / base
    if base / window.seconds < rule.least:
        note = f"too little activity to judge: {name} grew by {base / window.seconds:.3g} a second"
        return _judged(rule, value, None, None, note)
    return _judged(rule, value, None, value, _note(name, sample) or _note(of, sample))


def _why_missing(rule: Rule, sample: StatusSample) -> str:
    """Return why none of the names is there."""
    if rule.id == "deadlocks" and sample.latest_deadlock:
        return f"this server does not count them; the latest was at {sample.latest_deadlock}"
    for name in (*rule.of, *rule.to):
        source = name.partition(".")[0]
        if name in sample.missing:
            return sample.missing[name]
        if source in sample.missing and "." in name:
            return sample.missing[source]
    return ABSENT


def _note(name: str, sample: StatusSample) -> str | None:
    if name == "handler.rows_read":
        return _ALL_ENGINES
    if name in ("Innodb_deadlocks", "metrics.lock_deadlocks") and sample.latest_deadlock:
        return f"the latest was at {sample.latest_deadlock}"
    return None


def _judged(
    rule: Rule, value: float, rate: float | None, judged: float | None, note: str | None = None
) -> Row:
    verdict = Verdict.OK
    if judged is not None:
        for limit, worse in ((rule.warning, Verdict.WARNING), (rule.critical, Verdict.CRITICAL)):
            if limit is not None and (judged <= limit if rule.below else judged >= limit):
                verdict = worse
    return _made(rule, verdict, value, rate, note)


def _unknown(rule: Rule, note: str, value: float | None = None) -> Row:
    return _made(rule, Verdict.UNKNOWN, value, None, note)


def _made(
    rule: Rule, verdict: Verdict, value: float | None, rate: float | None, note: str | None
) -> Row:
    return Row(
        id=rule.id,
        group=rule.group,
        title=rule.title,
        unit=rule.unit,
        verdict=verdict,
        value=value,
        rate=rate,
        meaning=rule.meaning,
        when=rule.when,
        note=note,
    )

# SPDX-License-Identifier: Apache-2.0
"""The price of syncs and of durable commits, as text and as stallscope.storage-sync/1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stallscope.analyzers.durability import Durability, Prediction, Setting
from stallscope.analyzers.syncfit import SyncCost
from stallscope.base.text import without_surrogates
from stallscope.reporters import units
from stallscope.reporters.lines import Line, wrap

__all__ = ["SCHEMA", "Report", "Whole", "dumps", "render"]

SCHEMA = "stallscope.storage-sync/1"

_LOST = {
    Setting(1, 1): "nothing",
    Setting(1, 0): "binlog events: host dies",
    Setting(2, 1): "1 s of commits: host dies",
    Setting(2, 0): "1 s of commits: host dies",
    Setting(0, 1): "1 s of commits: server dies",
    Setting(0, 0): "1 s of commits: server dies",
}
_INDENT = "  "


class Report(msgspec.Struct, frozen=True):
    """What was found of one server."""

    found: Durability
    name: str
    pid: int
    notes: tuple[str, ...] = ()


class Whole(msgspec.Struct, frozen=True):
    """All of one run: of a server, of a folder, or of both."""

    server: Report | None
    folder: str = ""
    probed: Mapping[str, SyncCost] = {}
    """By call: fsync, fdatasync."""


def render(whole: Whole, width: int) -> list[Line]:
    """Return the lines; the first ones say what a commit costs."""
    lines: list[Line] = []
    if whole.server is not None:
        report = whole.server
        lines += _head(report, width)
        lines += _settings(report.found)
        lines += _rows(report.found, width)
        lines += _costs("syncs by file class", report.found.costs, report.found)
        for note in (*report.found.notes, *report.notes):
            lines += wrap(f"note: {note}", width, hang="      ", style="dim")
    if whole.probed:
        lines += _costs(f"syncs in {whole.folder} (--probe-dir)", whole.probed, None)
        lines += wrap(_reasons(whole.probed), width, style="dim") if _reasons(whole.probed) else ()
    return lines


def _head(report: Report, width: int) -> Iterator[Line]:
    found = report.found
    who = f"{report.name} (pid {report.pid}), {found.seconds:.0f} s"
    if found.commits_per_s is None or found.setting is None:
        said = f"{who}: {_said_of_syncs(found)}."
    else:
        clients = "" if found.clients is None else f" of {_plural(found.clients, 'client')}"
        said = f"{who}: {_rate(found.commits_per_s)} commits/s{clients} at {_setting_text(found)}."
    yield from wrap(said, width, style="bold")
    yield from wrap(_price(found), width)
    if found.predictions:
        yield from wrap(_offers(found), width)
    if found.why_not is not None:
        yield from wrap(f"No predictions: {found.why_not}.", width, style="yellow")


def _said_of_syncs(found: Durability) -> str:
    count = sum(cost.syncs for cost in found.costs.values())
    if not count:
        return "no syncs"
    return f"{_rate(count / found.seconds)} syncs/s" if found.seconds else f"{count} syncs"


def _setting_text(found: Durability) -> str:
    assert found.setting is not None
    binlog = f", sync_binlog={found.setting.sync_binlog}" if found.binlog else ", no binlog"
    return f"innodb_flush_log_at_trx_commit={found.setting.flush}{binlog}"


def _price(found: Durability) -> str:
    parts = []
    for name, each in found.syncs_per_commit.items():
        cost = found.costs[name]
        if name in ("redo", "binlog") and name in found.commits_per_sync:
            parts.append(f"{each:.2f} syncs of the {name} at {_ms(cost.mean_ms)}")
    if not parts:
        if not found.commits_per_s:
            return "What a commit costs is unknown."
        return "A commit waits for no sync."
    share = ""
    if found.sync_share is not None:
        share = f" Syncs are {found.sync_share:.0%} of the time of a client."
    together = [
        f"one of the {name} serves {each:.1f} commits"
        for name, each in found.commits_per_sync.items()
        if each >= 1.05
    ]
    group = f" Group commit: {', '.join(together)}." if together else ""
    return f"A commit costs {' and '.join(parts)}.{group}{share}"


def _offers(found: Durability) -> str:
    """Return what the safest and the loosest setting would give."""
    rates = {one.setting: one for one in found.predictions}
    safest, loosest = min(rates, key=_order), max(rates, key=_order)
    said = []
    for setting, word in ((safest, "the safest setting"), (loosest, "the loosest")):
        if setting == found.setting:
            said.append(f"{word} is the one that is set")
        else:
            one = rates[setting]
            said.append(f"{word} would give {_rate(one.commits_per_s)} commits/s")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _order(setting: Setting) -> tuple[int, int]:
    return ((1, 2, 0).index(setting.flush), -setting.sync_binlog)


def _settings(found: Durability) -> Iterator[Line]:
    if not found.predictions:
        return
    yield Line("")
    yield Line("innodb_flush_log_  sync_                            a crash can lose", "bold")
    yield Line("  at_trx_commit   binlog  commits/s       interval", "bold")
    for one in found.predictions:
        binlog = str(one.setting.sync_binlog) if found.binlog else "-"
        lost = _LOST.get(one.setting, "") if found.binlog else _LOST_WITHOUT[one.setting.flush]
        yield Line(
            f"{one.setting.flush:>8}{binlog:>13}{_rate(one.commits_per_s):>11}"
            f"{_interval(one):>15}  {lost}",
            "bold" if one.now else "",
        )


_LOST_WITHOUT = {
    1: "nothing",
    2: "1 s of commits: host dies",
    0: "1 s of commits: server dies",
}


def _interval(one: Prediction) -> str:
    return "now" if one.now else f"{_rate(one.low)}-{_rate(one.high)}"


def _rows(found: Durability, width: int) -> Iterator[Line]:
    if not found.rows:
        return
    yield Line("")
    yield Line("rows a transaction      rows/s        interval", "bold")
    for one in found.rows:
        span = f"{_rate(one.low)}-{_rate(one.high)}"
        yield Line(f"{one.rows_per_commit:>18}{_rate(one.rows_per_s):>12}{span:>16}")
    yield from wrap("(at the setting that is set; rows written as they are now)", width)


def _costs(title: str, costs: Mapping[str, SyncCost], found: Durability | None) -> Iterator[Line]:
    if not costs:
        return
    yield Line("")
    yield Line(
        f"{title:<29.29} {'syncs':>8} {'a commit':>9} {'mean':>8} {'K':>8} {'R MB/s':>7} {'r²':>5}",
        "bold",
    )
    for name, cost in sorted(costs.items(), key=lambda item: -item[1].syncs):
        each = None if found is None else found.syncs_per_commit.get(name)
        share = "-" if each is None else f"{each:.2g}" if each < 0.995 else f"{each:.2f}"
        k = _ms(cost.k_ms) if cost.determined else "-"
        rate = "-" if cost.r_mb_s is None else units.number(round(cost.r_mb_s))
        r2 = "-" if cost.r2 is None else f"{cost.r2:.2f}"
        yield Line(
            f"  {name:<27.27} {cost.syncs:>8} {share:>9} {_ms(cost.mean_ms):>8} {k:>8}"
            f" {rate:>7} {r2:>5}"
        )
    if found is not None:
        reasons = _reasons(costs)
        if reasons:
            yield Line(f"  {reasons}"[:200], "dim")


def _reasons(costs: Mapping[str, SyncCost]) -> str:
    why = [one for one in costs.values() if not one.determined]
    if not why:
        return ""
    return "K and R: '-' is not determined; then the mean time is used (--json says why)."


def _ms(value: float | None) -> str:
    return "-" if value is None else units.duration(value)


def _rate(value: float) -> str:
    if value < 10:
        return f"{value:.2g}"
    return f"{round(value):,}".replace(",", " ") if value < 1e7 else units.number(round(value))


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def dumps(whole: Whole) -> str:
    """Return one line of JSON, field by field in docs/commands/storage-sync.md."""
    document: dict[str, Any] = {"schema": SCHEMA}
    server = whole.server
    if server is not None:
        document |= _document(server)
    if whole.probed:
        document["probe_dir"] = {
            "path": whole.folder,
            "calls": [{"call": name, **_cost(one)} for name, one in whole.probed.items()],
        }
    document.setdefault("classes", [])
    document.setdefault("predictions", [])
    return msgspec.json.encode(without_surrogates(document)).decode()


def _document(report: Report) -> dict[str, Any]:
    found = report.found
    setting = found.setting
    return {
        "pid": report.pid,
        "seconds": found.seconds,
        "setting": None
        if setting is None
        else {
            "flush_log_at_trx_commit": setting.flush,
            "sync_binlog": setting.sync_binlog if found.binlog else None,
        },
        "log_bin": found.binlog,
        "commits_per_s": found.commits_per_s,
        "clients": found.clients,
        "sync_share": found.sync_share,
        "classes": [
            {
                "class": name,
                **_cost(cost),
                "syncs_per_commit": found.syncs_per_commit.get(name),
                "commits_per_sync": found.commits_per_sync.get(name),
            }
            for name, cost in found.costs.items()
        ],
        "predictions": [
            {
                "flush_log_at_trx_commit": one.setting.flush,
                "sync_binlog": one.setting.sync_binlog if found.binlog else None,
                "commits_per_s": one.commits_per_s,
                "low": one.low,
                "high": one.high,
                "now": one.now,
            }
            for one in found.predictions
        ],
        "rows": [msgspec.structs.asdict(one) for one in found.rows],
        "model": None if found.model is None else msgspec.structs.asdict(found.model),
        "why_not": found.why_not,
        "notes": [*found.notes, *report.notes],
    }


def _cost(cost: SyncCost) -> dict[str, Any]:
    return {
        "syncs": cost.syncs,
        "k_ms": cost.k_ms,
        "k_is": None if cost.k_ms is None else "fit" if cost.determined else "mean",
        "r_mb_s": cost.r_mb_s,
        "r2": cost.r2,
        "determined": cost.determined,
        "why_not": cost.why_not,
        "mean_ms": cost.mean_ms,
        "mean_bytes": cost.mean_bytes,
    }

# SPDX-License-Identifier: Apache-2.0
"""Pokes for people, and as ``stallscope.poke/1``: docs/commands/poke.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stallscope.base.text import clean, without_surrogates
from stallscope.base.times import local
from stallscope.model.pokes import DirectIo, Plan, Poke, Record, State, Stored
from stallscope.reporters.lines import Line, wrap
from stallscope.reporters.units import duration

__all__ = [
    "SCHEMA",
    "Applied",
    "dry_run",
    "dumps",
    "entries",
    "entry_row",
    "plan_row",
    "state_row",
    "stored_row",
    "undone",
    "undos",
    "written",
]

SCHEMA = "stallscope.poke/1"
_LABEL = 12
_DIGITS = 16
_LIVES = {
    "active": "active: the server has the new value",
    "restored": "not active: the server has the old value, and nothing says who restored it",
    "changed": "changed: the server has neither value, so somebody else changed it",
    "undone": "undone",
    "not-written": "not written",
    "ended": "over: its process has ended",
    "unknown": "unknown",
}


class Applied(msgspec.Struct, frozen=True):
    """An entry of the list, and for which servers it is."""

    entry: Poke | DirectIo
    pids: tuple[int, ...]
    values: tuple[int | None, ...] = ()
    """What the word holds now in each of them."""


def dumps(action: str, fields: dict[str, Any]) -> str:
    """Return one JSON object."""
    value = without_surrogates({"schema": SCHEMA, "action": action, **fields})
    return msgspec.json.encode(value).decode()


def plan_row(plan: Plan, seconds: float | None) -> dict[str, Any]:
    """Return what would be written."""
    entry = plan.entry
    return {
        "name": entry.name,
        "pid": plan.looked.pid,
        "exe": plan.looked.exe,
        "build": plan.looked.build,
        "server": entry.server,
        "symbol": entry.symbol if isinstance(entry, Poke) else None,
        "address": plan.address,
        "size": entry.size if isinstance(entry, Poke) else None,
        "old": plan.old,
        "new": plan.new,
        "files": [one.path for one in plan.files],
        "seconds": seconds,
    }


def stored_row(stored: Stored) -> dict[str, Any]:
    """Return a record with its events."""
    record = stored.record
    return {
        "id": record.id,
        "name": record.name,
        "pid": record.pid,
        "exe": record.exe,
        "build": record.build,
        "server": record.server,
        "symbol": record.symbol,
        "address": record.address,
        "size": record.size,
        "old": record.old,
        "new": record.new,
        "files": [one.path for one in record.files],
        "created_ns": record.created_ns,
        "seconds": record.seconds,
        "undo": f"stallscope poke --undo {record.id}",
        "events": [
            {"event": one.event, "at_ns": one.at_ns, "by": one.by, "detail": one.detail}
            for one in stored.events
        ],
    }


def state_row(state: State) -> dict[str, Any]:
    """Return a record with what its change is now."""
    row = stored_row(state.stored)
    return {**row, "state": state.life, "why": state.why, "supervisors": list(state.supervisors)}


def entry_row(applied: Applied) -> dict[str, Any]:
    """Return an entry of the list."""
    entry = applied.entry
    row: dict[str, Any] = {
        "name": entry.name,
        "kind": "word" if isinstance(entry, Poke) else "direct-io",
        "server": entry.server,
        "build": _build(entry),
        "does": entry.does,
        "undo": entry.undo,
        "risks": entry.risks,
        "pids": list(applied.pids),
        "values": list(applied.values),
    }
    if isinstance(entry, Poke):
        row |= {"symbol": entry.symbol, "address": entry.address, "size": entry.size}
        row |= {"old": [entry.old.least, entry.old.most], "new": [entry.new.least, entry.new.most]}
        row["read_by"] = entry.read_by
    return row


def _build(entry: Poke | DirectIo) -> str:
    return f"build-id {entry.build_id}" if entry.build_id else f"sha256 {entry.sha256}"


def _short(build: str) -> str:
    """Return a build with the beginning of its hash; the JSON has all of it."""
    kind, _, digits = build.partition(" ")
    return (
        f"{kind} {digits[:_DIGITS]}..." if len(digits) > _DIGITS and kind != "build-id" else build
    )


def _rows(rows: Sequence[tuple[str, str]], width: int) -> Iterator[Line]:
    """Wrap the text of each row beside its label."""
    for label, text in rows:
        for number, line in enumerate(wrap(text, max(20, width - _LABEL - 2))):
            head = label if number == 0 else ""
            yield Line(f"  {head:<{_LABEL}}{line.text}", line.style)


def dry_run(plan: Plan, seconds: float | None, width: int) -> Iterator[Line]:
    """Return what would be written where, and how it is undone."""
    entry = plan.entry
    yield Line("Dry run: nothing was written. The same command with --yes writes.", "bold")
    rows = [
        ("server", f"pid {plan.looked.pid}, {entry.server}, {plan.looked.exe}"),
        ("build", f"{_short(plan.looked.build)}: as in the allow-list"),
    ]
    if isinstance(entry, Poke):
        rows += [
            ("write", f"{entry.size} bytes at {plan.address:#x}, {entry.symbol}"),
            ("value", f"{plan.old} now, {plan.new} then"),
            ("read by", entry.read_by),
        ]
    else:
        rows += [("set", "O_DIRECT on these open files of the server:")]
        rows += [("", one.path) for one in plan.files]
    rows += [
        ("does", entry.does),
        ("risks", entry.risks),
        ("until", _until(seconds)),
        ("undo", f"{entry.undo}. Command: stallscope poke --undo ID; --yes prints the ID"),
    ]
    yield from _rows(rows, width)


def _until(seconds: float | None) -> str:
    if seconds is None:
        return "you undo it, or the server ends: no --for was given"
    return f"{duration(seconds * 1000)} later: a supervisor then undoes it"


def written(stored: Stored, width: int) -> Iterator[Line]:
    """Return what was written, and how it is undone."""
    record = stored.record
    yield Line(clean(f"Written: {record.name} in process {record.pid}."), "bold")
    rows = [("changed", _change(record)), ("until", _until(record.seconds))]
    yield from _rows([*rows, ("undo", f"stallscope poke --undo {record.id}")], width)


def undone(stored: Stored, width: int) -> Iterator[Line]:
    """Return what an undo has found."""
    record = stored.record
    end = stored.end
    if end is not None and end.detail == "old":
        text = f"Poke {record.id}: process {record.pid} had the old value already."
    else:
        text = f"Undone: {record.name} in process {record.pid}."
    yield Line(clean(text), "bold")
    yield from _rows([("now", _change(record, back=True))], width)


def _change(record: Record, *, back: bool = False) -> str:
    if record.files:
        paths = ", ".join(one.path for one in record.files)
        return f"O_DIRECT {'cleared' if back else 'set'}: {paths}"
    value = record.old if back else record.new
    was = "" if back else f", was {record.old}"
    return f"{record.symbol} = {value}{was} ({record.size} bytes at {record.address:#x})"


def entries(found: Sequence[Applied], width: int) -> Iterator[Line]:
    """Return the allow-list."""
    if not found:
        yield Line("The allow-list is empty.")
    for applied in found:
        entry = applied.entry
        is_word = isinstance(entry, Poke)
        name = entry.name if is_word else f"--direct-io {entry.name}"
        yield Line(name, "bold green" if applied.pids else "bold")
        rows = [("server", entry.server), ("build", _short(_build(entry)))]
        if isinstance(entry, Poke):
            rows += [
                ("word", f"{entry.symbol}, {entry.size} bytes, from {entry.old} to {entry.new}"),
                ("read by", entry.read_by),
            ]
        rows += [("does", entry.does), ("risks", entry.risks), ("undo", entry.undo)]
        yield from _rows([*rows, ("applies to", _applies(applied))], width)


def _applies(applied: Applied) -> str:
    if not applied.pids:
        return "none of the servers that were checked"
    values = applied.values or (None,) * len(applied.pids)
    pairs = zip(applied.pids, values, strict=True)
    return ", ".join(f"pid {pid}" + ("" if n is None else f" (now {n})") for pid, n in pairs)


def undos(found: Sequence[State], width: int) -> Iterator[Line]:
    """Return pokes with what they are now."""
    if not found:
        yield Line("No poke that could be undone.")
    for state in found:
        record = state.stored.record
        style = "bold yellow" if state.life in ("active", "changed", "unknown") else "bold"
        yield Line(clean(f"{record.id}  {record.name}, pid {record.pid}"), style)
        rows = [
            ("state", _LIVES[state.life] + (f": {state.why}" if state.why else "")),
            ("changed", _change(record)),
            ("at", local(record.created_ns)[:19]),
        ]
        if state.life in ("active", "changed", "unknown"):
            rows += [("until", _guarded(state))]
        if state.stored.end is None and state.life != "ended":
            rows += [("undo", f"stallscope poke --undo {record.id}")]
        yield from _rows(rows, width)


def _guarded(state: State) -> str:
    record = state.stored.record
    if record.seconds is None:
        return "you undo it: it has no supervisor"
    until = local(record.created_ns + round(record.seconds * 1e9))[:19]
    if not state.supervisors:
        return f"you undo it: its supervisors are gone, and it was to be undone at {until}"
    pids = ", ".join(map(str, state.supervisors))
    return f"{until}, by a supervisor (pid {pids})"

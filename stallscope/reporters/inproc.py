# SPDX-License-Identifier: Apache-2.0
"""Rings of servers, for people and as ``stallscope.inproc/1``."""

from __future__ import annotations

import pwd
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stallscope.base.text import clean, without_surrogates
from stallscope.base.times import local
from stallscope.model.rings import Found, Life, Ring
from stallscope.reporters.lines import Line, threads_text, wrap
from stallscope.reporters.units import duration, number

__all__ = ["SCHEMA", "dumps", "render", "thresholds"]

SCHEMA = "stallscope.inproc/1"

_STYLES = {
    Life.ALIVE: "bold green",
    Life.ENDED: "dim",
    Life.LEFT: "bold yellow",
    Life.UNKNOWN: "bold",
}


def dumps(found: Sequence[Found]) -> str:
    """Return the rings as one JSON object."""
    rows = [_row(one) for one in found]
    value = without_surrogates({"schema": SCHEMA, "rings": rows})
    return msgspec.json.encode(value).decode()


def _row(found: Found) -> dict[str, Any]:
    ring = found.ring
    row: dict[str, Any] = {"file": str(found.path), "life": found.life, "process": found.process}
    if ring is None:
        return {**row, "error": found.error}
    facts = msgspec.structs.asdict(ring)
    return {
        **row,
        "owner": ring.owner,
        "bytes": ring.size,
        "pid": ring.pid,
        "comm": ring.comm,
        "exe": ring.exe,
        "library": ring.library,
        "since_ns": ring.created_wall_ns,
        **{
            name: facts[name]
            for name in (
                "enabled",
                "thresholds_ms",
                "slots",
                "threads",
                "waiting",
                "waits",
                "records",
                "lost",
            )
        },
    }


def render(found: Sequence[Found], folders: Sequence[str], width: int) -> list[Line]:
    """Return the facts of each ring, escaped for a terminal."""
    if not found:
        where = ", ".join(map(clean, folders))
        return list(wrap(f"No ring of a server in {where}.", width))
    out: list[Line] = []
    for one in found:
        out += [Line("")] if out else []
        out += _lines(one, width)
    return out


def _lines(found: Found, width: int) -> Iterator[Line]:
    ring = found.ring
    if ring is None:
        yield from wrap(found.error or str(found.path), width, style="yellow")
        return
    yield from wrap(_whose(found, ring), width, style=_STYLES[found.life])
    for text in (
        str(found.path),
        f"{'on' if ring.enabled else 'off: nothing is recorded'}; {thresholds(ring)}",
        f"{threads_text(ring.threads)} of at most {number(ring.slots)},"
        f" {ring.waiting} in a wait; {number(ring.waits)} waits, {number(ring.records)} records",
        _lost(ring),
    ):
        yield from wrap(text, width, indent="  ", hang="    ")


def _whose(found: Found, ring: Ring) -> str:
    name = f"{ring.comm or 'a process'} (pid {found.process or ring.pid})"
    since = local(ring.created_wall_ns)[:19]
    life = {
        Life.ALIVE: f"recorded since {since}",
        Life.ENDED: f"has exited; its ring was kept, started {since}",
        Life.LEFT: f"has ended and left its ring of {since}; `stallscope analyze` reads it",
        Life.UNKNOWN: f"ring started {since}; the process is in another PID namespace",
    }[found.life]
    version = f", library {ring.library}" if ring.library else ""
    return f"{name}, user {_user(ring.owner)}: {life}{version}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def thresholds(ring: Ring) -> str:
    """Return the thresholds: that of most kinds, then the others."""
    usual, _ = Counter(ring.thresholds_ms.values()).most_common(1)[0]
    others = [f"{kind} {duration(ms)}" for kind, ms in ring.thresholds_ms.items() if ms != usual]
    return "; ".join([f"threshold {duration(usual)}", *others])


def _lost(ring: Ring) -> str:
    lost = ", ".join(f"{number(count)} {cause}" for cause, count in ring.lost.items())
    return f"lost: {lost or 'nothing'}; {ring.size / 1e6:.1f} MB"

# SPDX-License-Identifier: Apache-2.0
"""Live stalls and their fixed twins, burst by burst: named rightly, and with the right blocker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bench import progress
from tests.bench.snapshots import snap, verdict_of
from tests.bench.stats import BenchError, Row, Section, number
from tests.support.servers import ChildEnded, Late, Unavailable
from tests.support.stall import STALLS
from tests.support.stalls.stall import Expected

__all__ = ["section"]

RIGHT = 0.95
"""The part of a stall's bursts that must be right."""
FIXED = "-fixed"


@dataclass
class Tally:
    """What the bursts of one stall said."""

    server: str
    has_blocker: bool
    bursts: int = 0
    right: int = 0
    blockers: int = 0
    said: Counter[str] = field(default_factory=Counter)
    confidences: list[float] = field(default_factory=list)


def section(names: Sequence[str], bursts: int) -> Section:
    """Take bursts of each stall that is named, or of all."""
    taken: dict[str, Tally] = {}
    goals, left_out = [], []
    for name in names or STALLS:
        if name not in STALLS:
            raise BenchError(f"no stall {name}: see scripts/stall --help")
        try:
            taken[name] = measure(name, bursts)
        except (Unavailable, Late, ChildEnded) as error:
            left_out.append(f"{name}: {error}")
            continue
        goals += _goals(name, taken[name])
    return Section(
        "stalls",
        f"Live stalls and their fixed twins, {bursts} bursts each",
        tuple(_rows(taken)),
        goals=tuple(goals),
        left_out=tuple(left_out),
        notes=(
            "right: the first finding is the stall's, with a confidence of 0.5 or more;"
            " of a twin: there is none of 0.5 or more",
        ),
    )


def measure(name: str, bursts: int) -> Tally:
    """Make the stall, and take bursts of it."""
    stall = STALLS[name]
    with stall.started() as (server, made), made as holder:
        named = isinstance(holder, int) or bool(stall.expected.holder)
        tally = Tally(server.name, has_blocker=named and bool(stall.expected.signatures))
        for _ in range(bursts):
            progress(f"verdict: {name}, burst {tally.bursts + 1}")
            _count(tally, snap(server.pid), stall.expected, holder)
    return tally


def _count(tally: Tally, analysis: dict[str, Any], expected: Expected, holder: object) -> None:
    verdict = verdict_of(analysis)
    tally.bursts += 1
    said = "nothing" if verdict is None else verdict["signature"] or "unknown"
    tally.said[said] += 1
    if not expected.signatures:
        tally.right += verdict is None
        return
    if verdict is None or verdict["signature"] not in expected.signatures:
        return
    tally.right += 1
    tally.confidences.append(verdict["confidence"])
    tally.blockers += _is_blocker(verdict["blocker"], expected, holder)


def _is_blocker(blocker: dict[str, Any] | None, expected: Expected, holder: object) -> bool:
    if blocker is None:
        return False
    # MySQL 5.5 does not say which thread serves a connection: there the frames have to do.
    known = blocker["connection"] is not None or not expected.holder
    if isinstance(holder, int) and known:
        return holder in (blocker["connection"], blocker["tid"])
    return any(name in frame for frame in blocker["frames"] for name in expected.holder)


def _rows(taken: Mapping[str, Tally]) -> Iterator[Row]:
    """Make a row of each stall with its twin, and of each twin that was measured alone."""
    for name, tally in taken.items():
        twin = taken.get(f"{name}{FIXED}")
        if name.endswith(FIXED):
            if name.removesuffix(FIXED) not in taken:
                yield Row(name, {"server": tally.server, **_cells(None, tally)})
        else:
            yield Row(name, {"server": tally.server, **_cells(tally, twin)})


def _cells(stall: Tally | None, twin: Tally | None) -> dict[str, str]:
    blocker = f"{stall.blockers} of {stall.bursts}" if stall and stall.has_blocker else "-"
    least = number(min(stall.confidences)) if stall and stall.confidences else "-"
    said = stall.said if stall else twin.said if twin else Counter[str]()
    return {
        "right": f"{stall.right} of {stall.bursts}" if stall else "-",
        "blocker": blocker,
        "least confidence": least,
        "first findings": ", ".join(f"{said} {count}" for said, count in said.most_common(3)),
        "fixed twin": f"{twin.right} of {twin.bursts}" if twin else "-",
    }


def _goals(name: str, tally: Tally) -> list[tuple[str, bool]]:
    least = RIGHT * tally.bursts
    if name.endswith(FIXED):
        return [(f"{name}: no finding", tally.right == tally.bursts)]
    goals = [(f"{name}: named in 19 of 20", tally.right >= least)]
    if tally.has_blocker:
        goals.append((f"{name}: blocker in 19 of 20", tally.blockers >= least))
    return goals

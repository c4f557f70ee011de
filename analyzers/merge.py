# SPDX-License-Identifier: Apache-2.0
"""One verdict from several captures of one server: the same for a burst, an incident, and dumps
that were taken one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stallscope.analyzers.analysis import Blocker, Finding, Impact, Seen
from stallscope.analyzers.pool import Pool
from stallscope.analyzers.scene import Scene

__all__ = ["Merged", "merge"]

NO_STALL = 0.35
"""The confidence of what a healthy server under full load shows as well: it is not reported."""
OFTEN = 0.5
"""Of the captures: what fewer show is a moment, in proportion."""
LINKED = 0.5
"""Of the captures that show the victims: so many must show their cause."""
BRIEF_PART = 0.9
"""Of the waits: if so many are short, they are those of a busy server."""
STANDING_THREADS = 8.0
STANDING_SHARE = 0.5
"""Of the active threads: a queue that is there at each moment, however quickly it moves."""
STANDING_COVERAGE = 0.3
"""Of the time: a holder of such a queue is seen. More of the threads need no holder to be seen."""
STANDING_MOST = 0.75
LINK = 0.9
"""Of its victims' confidence: the least of a cause, since the link between them is a strong one."""
LEAST_CPU = 0.25
"""Of the server's samples: a signature that explains so much is what saturates the CPUs."""
SATURATED = "cpu-saturated"
MANY_RUNNABLE = 12
"""Threads for each CPU that want to run."""


class Merged(NamedTuple):
    """Findings with the index of the capture that shows each best."""

    findings: list[Finding]
    shown: dict[str | None, int]


class _Found(NamedTuple):
    """A signature's findings: (index of the capture, finding)."""

    signature: str | None
    items: list[tuple[int, Finding]]


def merge(
    scenes: Sequence[Scene],
    findings: Sequence[Sequence[Finding]],
    pool: Pool,
) -> Merged:
    """Return one finding for each signature, from those of all captures."""
    by_signature: dict[str | None, list[tuple[int, Finding]]] = {}
    for number, found in enumerate(findings):
        for finding in found:
            items = by_signature.setdefault(finding.signature, [])
            if not items or items[-1][0] != number:  # of several unknown stalls the first
                items.append((number, finding))
    merged: dict[str | None, Finding] = {}
    shown: dict[str | None, int] = {}
    for signature, items in by_signature.items():
        best = max(items, key=lambda item: _rank(item[1]))
        shown[signature] = best[0]
        merged[signature] = _one(scenes, _Found(signature, items), best[1], pool)
    _lift_roots(by_signature, merged)
    _explain_cpus(merged, pool, scenes)
    return Merged(list(merged.values()), shown)


def _rank(finding: Finding) -> tuple[int, float, float]:
    """Return how well a finding stands for those of all captures. Waiters that look each second
    whether they were killed show the length of their waits in some captures only."""
    return _shows(finding), finding.confidence, finding.impact.time_s or 0.0


def _shows(finding: Finding) -> int:
    """Return how well a finding shows its blocker."""
    blocker = finding.blocker
    if blocker is None:
        return 0
    return 2 if blocker.certain else 1


def _profile(pool: Pool, held: str, blocker: Blocker | None) -> tuple[tuple[str, float], ...]:
    """Return where the holders spend their time; nothing where the one that was seen is not the
    one that is known to hold the lock."""
    seen = pool.threads(held)
    if blocker is not None and blocker.certain and len(seen) == 1 and blocker.tid not in seen:
        return ()
    return tuple((spot.where, round(spot.share, 3)) for spot in pool.profile(held))


def _one(scenes: Sequence[Scene], found: _Found, best: Finding, pool: Pool) -> Finding:
    total = len(scenes)
    part = len(found.items) / total
    mean = sum(f.confidence for _, f in found.items) / len(found.items)
    confidence = max(mean, min(best.confidence, mean + 0.1)) * min(1.0, part / OFTEN)
    if _is_brief(scenes, found, pool):
        confidence = min(confidence, NO_STALL)
    signature = found.signature
    held = signature if signature is not None and pool.covers(signature) else None
    seen = Seen(
        captures=len(found.items),
        of=total,
        lasting=_lasting(scenes, found),
        cpu=round(pool.cpu(signature), 3) if signature is not None and pool.samples else None,
        holders=pool.holders(held) if held is not None else 0,
        profile=_profile(pool, held, best.blocker) if held is not None else (),
        passed_on=_passed_on(scenes, found),
    )
    threads = round(sum(f.threads for _, f in found.items) / len(found.items))
    impacts = [finding.impact for _, finding in found.items]
    times = [impact.time_s for impact in impacts if impact.time_s is not None]
    return msgspec.structs.replace(
        best,
        confidence=round(confidence, 2),
        threads=max(1, threads) if best.threads else 0,
        impact=Impact(
            threads=round(sum(impact.threads for impact in impacts) / total, 1),
            share=round(sum(impact.share for impact in impacts) / total, 4),
            time_s=max(times, default=None),
        ),
        evidence=(*_described(seen), *best.evidence),
        seen=seen,
    )


def _described(seen: Seen) -> list[str]:
    says: list[str] = []
    if seen.lasting:
        count = "1 thread is" if seen.lasting == 1 else f"{seen.lasting} threads are"
        says.append(f"{count} in one wait through half of the captures or more")
    if seen.passed_on and seen.holders > 1:
        says.append(
            f"the lock is passed on at least {seen.passed_on:.0f} times a second;"
            f" {seen.holders} holders were seen"
        )
    return says


def _lasting(scenes: Sequence[Scene], found: _Found) -> int:
    """Return how many threads were in one wait of the finding for long, in its fullest capture."""
    return max(
        sum(scenes[number].lasts(index) for index in finding.members)
        for number, finding in found.items
    )


def _is_brief(scenes: Sequence[Scene], found: _Found, pool: Pool) -> bool:
    """Return whether its waits are so short that a busy server has them as well.

    A queue of most threads at each moment is none of those, if its holder is seen.
    """
    signature = found.signature
    if signature is not None and scenes[0].catalog.by_id[signature].busy:
        return pool.samples > 0 and pool.cpu(signature) < LEAST_CPU
    whole = sum(len(finding.members) for number, finding in _inner(scenes, found))
    short = sum(_short(scenes[number], finding) for number, finding in _inner(scenes, found))
    if not whole or short < BRIEF_PART * whole:
        return False
    return not _stands(scenes, found, pool)


def _inner(scenes: Sequence[Scene], found: _Found) -> list[tuple[int, Finding]]:
    """Leave out the first and the last capture: how long their waits are is not seen."""
    return [item for item in found.items if 0 < item[0] < len(scenes) - 1]


def _short(scene: Scene, finding: Finding) -> int:
    """Return how many of its waits are short."""
    if scene.persistence is None:
        return 0
    return sum(scene.persistence.short[index] for index in finding.members)


def _stands(scenes: Sequence[Scene], found: _Found, pool: Pool) -> bool:
    count = sum(finding.threads for _, finding in found.items) / len(scenes)
    active = sum(scene.weight(scene.active) for scene in scenes) / len(scenes)
    if count < STANDING_THREADS or count < STANDING_SHARE * active or found.signature is None:
        return False
    signature = scenes[0].catalog.by_id.get(found.signature)
    if signature is None or signature.device:
        return False
    if count >= STANDING_MOST * active:
        return True
    return pool.coverage(found.signature) >= STANDING_COVERAGE


def _passed_on(scenes: Sequence[Scene], found: _Found) -> float | None:
    """Return how many of its waits ended each second: those that the next capture shows no more."""
    first, last = scenes[0].capture.time_ns, scenes[-1].capture.time_ns
    if first is None or last is None or last <= first:
        return None
    ended = sum(_short(scenes[number], finding) for number, finding in found.items)
    return round(ended * 1e9 / (last - first), 1) if ended else None


def _lift_roots(
    found: dict[str | None, list[tuple[int, Finding]]],
    merged: dict[str | None, Finding],
) -> None:
    """Link causes with their victims, and make a cause nearly as sure as they are.

    A lock that is passed on has many holders: what one of them waited for is in the profile of its
    holders, and no cause of all.
    """
    for signature, items in found.items():
        merged[signature] = msgspec.structs.replace(merged[signature], victim_of=None)
        links: dict[str, int] = {}
        for _, finding in items:
            if finding.victim_of is not None:
                links[finding.victim_of] = links.get(finding.victim_of, 0) + 1
        if not links:
            continue
        root = max(links, key=links.__getitem__)
        if root not in merged or links[root] < LINKED * len(items):
            continue
        least = round(merged[signature].confidence * LINK, 2)
        if merged[root].confidence < least:
            merged[root] = msgspec.structs.replace(merged[root], confidence=least)
        merged[signature] = msgspec.structs.replace(merged[signature], victim_of=root)


def _explain_cpus(merged: dict[str | None, Finding], pool: Pool, scenes: Sequence[Scene]) -> None:
    """Saturated CPUs are the verdict only where no signature explains what runs, and where more
    want to run than on a server that does all it can."""
    saturated = merged.get(SATURATED)
    if saturated is None:
        return
    explained = any(pool.cpu(signature) >= LEAST_CPU for signature in (*pool.sightings, *pool.busy))
    named = any(
        finding.signature not in (SATURATED, None) and finding.confidence >= saturated.confidence
        for finding in merged.values()
    )
    if explained or named or _few(saturated, scenes):
        merged[SATURATED] = msgspec.structs.replace(
            saturated, confidence=min(saturated.confidence, NO_STALL)
        )


def _few(saturated: Finding, scenes: Sequence[Scene]) -> bool:
    cpus = scenes[0].capture.host.get("cpus")
    return isinstance(cpus, int) and saturated.threads < MANY_RUNNABLE * cpus

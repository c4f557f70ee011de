# SPDX-License-Identifier: Apache-2.0
"""How surely a wait is what its name says: the confidence, from signs that the engine has.

The weights of the signs are fitted to dumps with known causes, by ``scripts/bench fit``, which
writes confidence.toml. docs/verdict.md shows how often they were right on dumps that they were not
fitted to.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from stallscope.analyzers.analysis import Impact, Signs
from stallscope.analyzers.blame import Case, released
from stallscope.analyzers.scene import Scene
from stallscope.analyzers.waits import INCOMPLETE, MOST_STRANGE, RUNNING

__all__ = ["DATA", "SIGNS", "Fit", "load", "signs"]

DATA = Path(__file__).resolve().parent / "confidence.toml"

MANY = 64
"""Threads: more make no finding surer."""
LASTING_NS = 60 * 10**9
LASTING_BURST_NS = 400 * 10**6
"""A wait that is seen to last so long is no moment."""
LEAST_RELEASED = 3
"""Waiters, where the holder is known from releases alone."""
FEW_LISTED = 5
"""So few waiters that a status lists are an ordinary moment, unless they have waited for long."""
LEAST_BUSY = 0.25
"""Of the active threads: work that fewer are busy with keeps nobody waiting."""
FULL_COVERAGE = 0.5
"""Of the time: work that prolongs other waits, and is seen so often, needs no queue of its own."""


SIGNS = Signs.__struct_fields__


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logistic model. ``fitted``: when, and from how many findings of how many sources."""

    intercept: float
    weights: dict[str, float]
    most: float
    """The surest that the data can show."""
    fitted: str = ""

    def confidence(self, found: Signs) -> float:
        """Return the chance that the name is right, 0 to 1."""
        score = self.intercept
        for name, weight in self.weights.items():
            score += weight * getattr(found, name)
        return min(self.most, 1 / (1 + math.exp(-max(-50.0, min(50.0, score)))))


@lru_cache(maxsize=1)
def load() -> Fit:
    """Read the package's fit."""
    return msgspec.convert(tomllib.loads(DATA.read_text(encoding="utf-8")), Fit)


def signs(
    scene: Scene,
    case: Case,
    cases: Mapping[str, Case],
    held_up: Collection[int],
    found: Impact,
) -> Signs:
    """Return the signs of one of the cases, which holds up these threads."""
    signature = case.signature
    at_once = scene.at_once(held_up)
    lasting = any(scene.waited_ns(index) >= _long(scene) for index in held_up)
    listed = any((lock := scene.lock_of(i)) and lock.source == "status" for i in case.waiters)
    least = FEW_LISTED if listed else max(signature.min_waiters, LEAST_RELEASED * released(case))
    few = at_once < least and not lasting
    # A report of waits has no idle threads, but others that run.
    chosen = scene.chosen and not (listed and RUNNING in scene.states)
    certain = case.blocker is not None and case.blocker.certain
    threads = scene.capture.threads
    price = sum(scene.shape(i).price * threads[i].count for i in case.waiters)
    return Signs(
        share=_share(scene, case, held_up, found),
        count=min(1.0, math.log2(1 + at_once) / math.log2(1 + MANY)),
        few=float(few and not chosen),
        few_chosen=float(few and chosen),
        single=float(not few and at_once <= 1),
        chosen=float(chosen),
        blocker=float(certain) * (case.blocker.share if case.blocker else 0),
        likely=float(case.blocker is not None and not certain),
        lock=float(_claimed(scene, case)),
        lasting=float(lasting),
        listed=float(listed),
        brief=float(scene.is_brief(held_up)),
        rival=float(bool(scene.rivals(case.waiters, signature))) if not signature.generic else 0.0,
        strange=min(1.0, price / (MOST_STRANGE * max(1, scene.weight(case.waiters)))),
        incomplete=_part(scene, INCOMPLETE),
        lone=float(not (case.waiters or case.held_up)),
        idle_work=float(signature.busy and found.share < LEAST_BUSY),
        unqueued=_unqueued(scene, case),
        generic=float(signature.generic and not case.closed),
        nearer=float(_has_nearer(scene, case, cases)),
    )


def _long(scene: Scene) -> int:
    return LASTING_NS if scene.persistence is None else LASTING_BURST_NS


def _share(scene: Scene, case: Case, held_up: Collection[int], found: Impact) -> float:
    """Return the share, with all threads that wait for a device where that is the cause."""
    if not (case.signature.device and held_up):
        return found.share
    blocker = case.blocker.thread if case.blocker else -1
    mine = (set(held_up) | scene.syncing) - {blocker}
    whole = (set(scene.active) | mine) - {blocker}
    return scene.weight(mine) / max(1, scene.weight(whole))


def _claimed(scene: Scene, case: Case) -> bool:
    """Return whether most of the waiters wait for a lock whose name the signature claims."""
    count = sum(
        lock.waiters
        for lock in scene.locks_of(case.waiters)
        if lock.symbol and case.signature in scene.catalog.claims(lock.symbol)
    )
    return 2 * count > scene.weight(case.waiters)


def _has_nearer(scene: Scene, case: Case, cases: Mapping[str, Case]) -> bool:
    """Return whether another root has the smaller precedence, and as many waiters or more."""
    mine = scene.weight(case.waiters)
    return any(
        other.signature.precedence < case.signature.precedence
        and other.root is None
        and scene.weight(other.waiters) >= mine
        for other in cases.values()
    )


def _part(scene: Scene, state: str) -> float:
    found = scene.weight(index for index, known in enumerate(scene.states) if known == state)
    return found / max(1, scene.total)


def _unqueued(scene: Scene, case: Case) -> float:
    if not case.signature.explains:
        return 0.0
    seen = scene.pool.coverage(case.signature.id) if scene.pool is not None else 0.0
    queue = scene.at_once(case.waiters) / FEW_LISTED
    return 1.0 - min(1.0, max(queue, seen / FULL_COVERAGE))

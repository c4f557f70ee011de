# SPDX-License-Identifier: Apache-2.0
"""The blame graph: who waits for what, for whom, how long and how many; its roots are where blame
ends.

A node is a case: the threads in one wait, and the thread that they wait for. An edge leads from a
case to the one that its blocker waits in. What a node holds up, it and all that end in it, is its
impact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from stallscope.analyzers import releases
from stallscope.analyzers.analysis import Impact
from stallscope.analyzers.blocker import choose
from stallscope.analyzers.catalog import Signature
from stallscope.analyzers.scene import Candidate, Scene
from stallscope.model.capture import LockKind

__all__ = ["Case", "add_rings", "blocked", "impact", "link", "named", "released", "victims"]

MOMENT_NS = 10**9
"""A wait that is known to be longer is followed to its root, however few threads wait there."""
LEAST_OFTEN = 0.5
"""Of the samples of an aggregate: a holder without waiters that fewer show was there a moment."""
LASTING_WAITERS = 0.5
"""Of the waiters of a signature: the larger part says what they are."""
LEAST_HELD_UP = 2
"""Threads in a slow call of a device, where nobody waits behind them: each call takes a moment."""
RING = "mutex-deadlock"
RING_ROLE = "is in the ring"


class Case(msgspec.Struct):
    """Threads in one wait, or a holder that is enough evidence of it."""

    signature: Signature
    """A generic one where no server's own signature fits."""
    waiters: tuple[int, ...]
    blocker: Candidate | None
    held_up: tuple[int, ...] = ()
    """Threads inside the device call of a holder: it holds them up as well."""
    root: str | None = None
    """Id of the signature that blocks this one's blocker."""
    title: str = ""
    """Where the signature's own does not say enough."""
    says: tuple[str, ...] | None = None
    """The evidence of a generic case."""
    against: tuple[str, ...] = ()
    closed: bool = False
    """A ring: its blocker is one of those that it holds up."""
    sure: bool = False
    """The kernel says so: no sign can speak against it."""
    whole: bool = False
    """The whole process is in this state: what else its threads show is a side effect."""
    unnamed: bool = False
    """No signature and no generic one has a name for it."""


def named(scene: Scene) -> dict[str, Case]:
    """Return a case for each signature of a server that fits."""
    cases: dict[str, Case] = {}
    for signature in scene.catalog.signatures:
        if signature.generic:
            continue
        waiters = scene.waiters.get(signature.id, ())
        if not (waiters or signature.idle_holder or scene.has_holder(signature.id)):
            continue
        held_up = scene.held_up.get(signature.id, ())
        blocker = choose(scene, signature, waiters)
        if not waiters and len(held_up) < LEAST_HELD_UP:
            if not _speaks_alone(scene, signature, blocker):
                continue
            held_up = ()
        cases[signature.id] = Case(signature, waiters, blocker, held_up=held_up)
    return cases


def _speaks_alone(scene: Scene, signature: Signature, blocker: Candidate | None) -> bool:
    """Return whether the holder is enough: for entries that say so, and where others are
    explained."""
    if blocker is None:
        return False
    if blocker.sighting is None and (
        scene.at_once(scene.holders.get(signature.id, ())) < LEAST_OFTEN
    ):
        return False
    if any(_explains(scene, signature, other) for other in signature.explains):
        return True
    if any(_same_blocker(scene, blocker, other) for other in signature.causes):
        return True
    numbers = scene.shape(blocker.thread).holder_of.get(signature.id, ())
    return scene.excerpt and any(signature.holders[number].alone for number in numbers)


def _explains(scene: Scene, signature: Signature, other: str) -> bool:
    """Return whether the signature's work prolongs the waits of another one.

    Waits that last while nobody does that work have another cause.
    """
    waiters = scene.waiters.get(other)
    if not waiters or scene.pool is None:
        return bool(waiters)
    if scene.pool.coverage(signature.id) >= LEAST_OFTEN:
        return True
    return not _mostly_last(scene, waiters)


def _mostly_last(scene: Scene, waiters: Sequence[int]) -> bool:
    """Return whether half of these waits do not end through half of the burst."""
    lasting = [index for index in waiters if scene.lasts(index)]
    return scene.weight(lasting) >= LASTING_WAITERS * scene.weight(waiters)


def _same_blocker(scene: Scene, blocker: Candidate, other: str) -> bool:
    """Return whether the other signature has waiters, and this thread blocks them."""
    waiters = scene.waiters.get(other)
    if not waiters or not blocker.chains:
        return False
    theirs = choose(scene, scene.catalog.by_id[other], waiters)
    return theirs is not None and theirs.certain and theirs.thread == blocker.thread


def _leads(scene: Scene, thread: int, beyond: Case) -> bool:
    """Return whether the case that a blocker waits in says more than the blocker's own frames do.

    Where locks are known, another thread has to wait for the same one, or somebody to own it. A
    wait of less than a second for a lock that nobody is seen holding is a moment.
    """
    item = scene.capture.threads[thread]
    others = set(beyond.waiters) - {thread}
    lock = scene.lock_of(thread)
    if lock is None or lock.kind is LockKind.COND:
        # One waiter is enough where such a wait does not end by itself soon.
        return beyond.blocker is not None or bool(others) or beyond.signature.min_waiters == 1
    if thread in scene.graph.by_waiter:
        return True
    if item.waited_ns is not None and item.waited_ns < MOMENT_NS:
        return False
    if scene.waited_ns(thread) >= MOMENT_NS or scene.lasts(thread):
        return True
    return any(scene.capture.threads[index].lock == item.lock for index in others)


def link(scene: Scene, cases: dict[str, Case]) -> None:
    """Find for each case the case that its blocker waits in."""
    for case in cases.values():
        blocker = case.blocker
        # What a thread waits for now is not what it waited for when it was seen as the holder.
        if blocker is None or blocker.sighting is not None:
            continue
        if not blocker.chains and not _stuck(scene, case):
            continue
        ring = next((c for c in cases.values() if c.closed and blocker.thread in c.waiters), None)
        if ring is not None and ring is not case:
            case.root = ring.signature.id
            continue
        other = scene.assigned.get(blocker.thread)
        if other is None or other.id == case.signature.id or other.id not in cases:
            continue
        if _leads(scene, blocker.thread, cases[other.id]):
            case.root = other.id
    for case in cases.values():
        # Who was seen as the holder can have ended before this capture.
        pooled = scene.pool is not None and scene.pool.covers(case.signature.id)
        if pooled or (case.blocker is not None and (case.blocker.chains or released(case))):
            for name in case.signature.explains:
                if (
                    name in cases
                    and cases[name].root is None
                    and case.root != name
                    and _explains(scene, case.signature, name)
                ):
                    cases[name].root = case.signature.id
        if case.blocker is not None and case.blocker.chains:
            for name in case.signature.causes:
                if name in cases and cases[name].root is None and case.root != name:
                    theirs = cases[name].blocker
                    if theirs and theirs.certain and theirs.thread == case.blocker.thread:
                        cases[name].root = case.signature.id
    _drop_empty(cases)


def add_rings(scene: Scene, cases: dict[str, Case]) -> None:
    """Turn each ring of cases into a deadlock, where all of its blockers are certain; else a ring
    has no root, and is cut where it closes.
    """
    for name in list(cases):
        ring = _ring(cases, name)
        if not ring:
            continue
        members = [cases[member] for member in ring]
        threads = [case.blocker.thread for case in members if case.blocker and case.blocker.certain]
        signature = scene.catalog.by_id.get(RING)
        deadlock = len(set(threads)) == len(members) and len(members) > 1
        if not deadlock or signature is None or signature.id in cases:
            members[-1].root = None
            continue
        blocker = members[0].blocker
        assert blocker is not None
        cases[signature.id] = Case(
            signature,
            tuple(threads),
            msgspec.structs.replace(blocker, role=RING_ROLE, chains=False),
            says=tuple(_in_ring(scene, case, cases) for case in members),
            against=("the holders are known by their stacks, not by the words of locks",),
            closed=True,
        )
        for case in members:
            case.root = signature.id


def _ring(cases: dict[str, Case], name: str) -> list[str]:
    """Return the ring of cases that this one is in; empty: none."""
    trail = [name]
    at = cases[name].root
    while at is not None and at in cases and at not in trail:
        trail.append(at)
        at = cases[at].root
    return trail if at == name else []


def _in_ring(scene: Scene, case: Case, cases: dict[str, Case]) -> str:
    assert case.blocker is not None
    assert case.root is not None
    thread = case.blocker.thread
    return (
        f"{scene.say(thread)} holds what {case.signature.id} waits for, and waits itself in"
        f" {case.root}: it {scene.doing(thread)}"
    )


def _stuck(scene: Scene, case: Case) -> bool:
    """Return whether a likely blocker and half of the waiters do not move through the burst."""
    return (
        case.blocker is not None
        and scene.lasts(case.blocker.thread)
        and case.blocker.thread not in case.waiters
        and _mostly_last(scene, case.waiters)
    )


def released(case: Case) -> bool:
    """Return whether only releases of the lock name the case's blocker."""
    return case.blocker is not None and case.blocker.source == releases.SOURCE


def _drop_empty(cases: dict[str, Case]) -> None:
    """Take out cases that nobody waits in and that another one explains: its victims say it all."""
    for name in [name for name, case in cases.items() if not case.waiters and case.root]:
        root = cases.pop(name).root
        for case in cases.values():
            if case.root == name:
                case.root = root if root != case.signature.id else None


def victims(cases: Mapping[str, Case], name: str) -> list[Case]:
    """Return the cases that end in this one, the nearest first."""
    out: list[Case] = []
    level = [name]
    seen = {name}
    while level:
        nearer = [
            case for case in cases.values() if case.root in level and case.signature.id not in seen
        ]
        seen.update(case.signature.id for case in nearer)
        out += nearer
        level = [case.signature.id for case in nearer]
    return out


def blocked(case: Case, behind: Iterable[Case]) -> set[int]:
    """Return the threads that a case holds up: its own, and those of its victims."""
    mine = set(case.waiters) | set(case.held_up)
    for victim in behind:
        mine.update(victim.waiters)
    if case.blocker is None or case.closed:
        return mine
    return mine - {case.blocker.thread} or mine


def impact(scene: Scene, case: Case, held_up: Collection[int]) -> Impact:
    """Return how much of the server these threads of a case are."""
    active = set(scene.active)
    if case.blocker is not None and not case.closed:
        active.discard(case.blocker.thread)
    whole = scene.weight(active | set(held_up))
    threads = scene.capture.threads
    times = [scene.waited_ns(index) * threads[index].count for index in held_up]
    return Impact(
        threads=round(scene.at_once(held_up), 1),
        share=round(scene.weight(held_up) / max(1, whole), 4),
        time_s=round(sum(times) / 1e9, 3) if any(times) else None,
    )

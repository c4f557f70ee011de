# SPDX-License-Identifier: Apache-2.0
"""Findings of the catalog's signatures: their waiters, their blocker, what it blocks in turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stallscope.analyzers import evidence, releases
from stallscope.analyzers.analysis import Finding, Link
from stallscope.analyzers.blocker import choose
from stallscope.analyzers.catalog import Catalog, Signature
from stallscope.analyzers.evidence import Case
from stallscope.analyzers.scene import Candidate, Scene, waiter_groups
from stallscope.model.capture import LockKind

__all__ = ["CAP", "WEAK_CAP", "findings", "order"]

CAP = 0.98
EXCERPT_CAP = 0.6
WEAK_CAP = 0.45
LINK = 0.9
MOMENT_NS = 10**9
LEAST_BUSY = 0.25
"""Of the active threads: work that fewer are busy with keeps nobody waiting."""
LEAST_OFTEN = 0.5
"""Of the samples of an aggregate: a holder without waiters that fewer show was there a moment."""
LASTING_WAITERS = 0.5
"""Of the waiters of a signature."""
LEAST_RELEASED = 3
"""Waiters, where the holder is known from releases alone."""
LASTING_NS = 60 * 10**9
LASTING_BURST_NS = 400 * 10**6
"""A wait that is seen to last so long is no moment."""
FEW_LISTED = 5
"""So few waiters that a status lists are an ordinary moment, unless they have waited for long."""
LEAST_HELD_UP = 2
"""Threads in a slow call of a device, where nobody waits behind them."""
LAST = 1_000
"""Precedence of what no signature knows."""


def findings(scene: Scene) -> list[Finding]:
    """Return a finding for each signature that fits, in no particular order."""
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
    _link(scene, cases)
    found = [_finding(scene, cases, case) for case in cases.values()]
    return [_at_least(finding, found) for finding in found]


def _at_least(root: Finding, found: Sequence[Finding]) -> Finding:
    """Make a root nearly as sure as its surest victim: the link between them is a strong one."""
    victims = [f.confidence * LINK for f in found if f.victim_of == root.signature]
    least = round(max(victims, default=0.0), 2)
    if least <= root.confidence:
        return root
    return msgspec.structs.replace(root, confidence=least)


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
    return any(scene.capture.threads[index].lock == item.lock for index in others)


def _link(scene: Scene, cases: dict[str, Case]) -> None:
    """Find for each case the case that its blocker waits in."""
    for case in cases.values():
        blocker = case.blocker
        # What a thread waits for now is not what it waited for when it was seen as the holder.
        if blocker is None or blocker.sighting is not None:
            continue
        if not blocker.chains and not _stuck(scene, case):
            continue
        other = scene.assigned.get(blocker.thread)
        if other is None or other.id == case.signature.id or other.id not in cases:
            continue
        if _leads(scene, blocker.thread, cases[other.id]):
            case.root = other.id
    for case in cases.values():
        # Who was seen as the holder can have ended before this capture.
        pooled = scene.pool is not None and scene.pool.covers(case.signature.id)
        if pooled or (case.blocker is not None and (case.blocker.chains or _released(case))):
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
    for name in cases:  # a cycle of signatures has no root: break it where it closes
        seen = {name}
        at = cases[name]
        while at.root is not None:
            if at.root in seen:
                at.root = None
                break
            seen.add(at.root)
            at = cases[at.root]


def _stuck(scene: Scene, case: Case) -> bool:
    """Return whether a likely blocker and half of the waiters do not move through the burst."""
    return (
        case.blocker is not None
        and scene.lasts(case.blocker.thread)
        and case.blocker.thread not in case.waiters
        and _mostly_last(scene, case.waiters)
    )


def _released(case: Case) -> bool:
    """Return whether only releases of the lock name the case's blocker."""
    return case.blocker is not None and case.blocker.source == releases.SOURCE


def _drop_empty(cases: dict[str, Case]) -> None:
    """Take out cases that nobody waits in and that another one explains: its victims say it all."""
    for name in [name for name, case in cases.items() if not case.waiters and case.root]:
        root = cases.pop(name).root
        for case in cases.values():
            if case.root == name:
                case.root = root if root != case.signature.id else None


def _victims(cases: dict[str, Case], name: str) -> list[Case]:
    """Return the cases that end in this one, the nearest first."""
    out: list[Case] = []
    level = [name]
    while level:
        nearer = [case for case in cases.values() if case.root in level]
        out += nearer
        level = [case.signature.id for case in nearer]
    return out


def _finding(scene: Scene, cases: dict[str, Case], case: Case) -> Finding:
    signature = case.signature
    victims = _victims(cases, signature.id)
    mine = set(case.waiters) | set(case.held_up)
    for victim in victims:
        mine.update(victim.waiters)
    blocked = mine - {case.blocker.thread if case.blocker else -1} or mine
    count = scene.weight(blocked)
    confidence = _confidence(scene, case, blocked)
    says, against = evidence.collect(scene, case, victims)
    chain = [
        Link(
            signature=item.signature.id,
            threads=scene.weight(item.waiters),
            tid=_link_tid(scene, item, root=item is case),
        )
        for item in (case, *victims)
    ]
    return Finding(
        signature=signature.id,
        title=signature.title,
        confidence=round(confidence, 2),
        threads=count,
        blocker=scene.blocker(case.blocker) if case.blocker else None,
        waiters=waiter_groups(scene, blocked),
        locks=scene.locks_of(blocked),
        chain=tuple(chain),
        evidence=tuple(says),
        remedies=signature.remedies,
        references=signature.references,
        against=tuple(against),
        meaning=" ".join(signature.meaning.split()),
        victim_of=case.root,
        members=tuple(sorted(blocked)),
    )


def _link_tid(scene: Scene, case: Case, *, root: bool) -> int | None:
    """Return the blocker of a link; of a victim only a certain one, or the chain would branch."""
    if case.blocker is None or not (root or case.blocker.certain):
        return None
    return scene.capture.threads[case.blocker.thread].tid


def _confidence(scene: Scene, case: Case, blocked: set[int]) -> float:
    signature = case.signature
    own = scene.at_once(blocked)
    active = set(scene.active)
    if signature.device and blocked:
        blocked = blocked | scene.syncing
    if case.blocker is not None:
        active.discard(case.blocker.thread)
        blocked = blocked - {case.blocker.thread} or blocked
    count = scene.weight(blocked)
    whole = max(scene.weight(active | blocked), 1)
    share = count / whole
    at_once = scene.at_once(blocked)
    score = 0.30 + 0.30 * share + 0.15 * min(1.0, at_once / 10)
    if case.blocker is not None:
        score += case.blocker.strength
    elif signature.idle_holder:
        score += 0.05
    if _named(scene, case):
        score += 0.08
    if scene.rivals(case.waiters, signature):
        score -= 0.1
    if signature.explains:
        # What it explains waits for something else as well: its own queue has to show, or how
        # much of the time its work takes.
        seen = scene.pool.coverage(signature.id) if scene.pool is not None else 0.0
        queue = scene.at_once(case.waiters) / 5
        score *= 0.7 + 0.3 * min(1.0, max(queue, seen / LEAST_OFTEN))
    lasting = _lasting(scene, blocked)
    # A thread in a server's wait array has spun without success; one in a stack may go on at once.
    listed = any((lock := scene.lock_of(i)) and lock.source == "status" for i in case.waiters)
    least = max(signature.min_waiters, LEAST_RELEASED if _released(case) else 1)
    few = own < (FEW_LISTED if listed else least) and not lasting
    if scene.excerpt:
        few = few and (listed or case.blocker is None)
        return min(score + 0.05, WEAK_CAP if few else EXCERPT_CAP)
    if not count:
        return min(score, WEAK_CAP)
    steady = 0.3 if least == 1 or listed or lasting else 2.0
    score *= at_once / (at_once + steady)
    few = few or (signature.busy and share < LEAST_BUSY)
    few = few or scene.is_brief(blocked)
    return min(score, WEAK_CAP if few else CAP)


def _lasting(scene: Scene, threads: Iterable[int]) -> bool:
    """Return whether one of these waits is known to be long."""
    least = LASTING_NS if scene.persistence is None else LASTING_BURST_NS
    return any(scene.waited_ns(index) >= least for index in threads)


def _named(scene: Scene, case: Case) -> bool:
    """Return whether most of the waiters wait for a lock whose name the signature claims."""
    count = sum(
        lock.waiters
        for lock in scene.locks_of(case.waiters)
        if lock.symbol and case.signature in scene.catalog.claims(lock.symbol)
    )
    return 2 * count > scene.weight(case.waiters)


def order(found: Sequence[Finding], catalog: Catalog, least: float) -> list[Finding]:
    """Put the verdict first: roots before victims, then the surer, the larger, nearer to causes."""
    kept = [finding for finding in found if finding.confidence >= least]
    names = {finding.signature for finding in kept}

    def rank(finding: Finding) -> tuple[bool, float, int, int]:
        known = catalog.by_id.get(finding.signature or "")
        return (
            finding.victim_of is not None and finding.victim_of in names,
            -finding.confidence,
            -finding.threads,
            known.precedence if known is not None else LAST,
        )

    return sorted(kept, key=rank)

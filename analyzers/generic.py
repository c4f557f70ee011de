# SPDX-License-Identifier: Apache-2.0
"""Findings without a server's frames: cycles, convoys, syncs, CPUs, and unknown stalls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stallscope.analyzers import releases
from stallscope.analyzers.analysis import Finding, Link
from stallscope.analyzers.blocker import by_lock
from stallscope.analyzers.catalog import Signature
from stallscope.analyzers.evidence import lock_words
from stallscope.analyzers.scene import Candidate, Scene, wait, waiter_groups
from stallscope.analyzers.verdict import CAP, WEAK_CAP
from stallscope.analyzers.waits import IDLE, RUNNING, WAITING, WORKS
from stallscope.model.capture import Capture

__all__ = ["findings"]

LEAST_UNKNOWN = 5
UNKNOWN_SHARE = 0.3
UNKNOWN_CAP = 0.6
"""The highest confidence of a stall without a signature."""

CYCLE = 0.95
"""Lock words that did not change are exact; but the thread that they name may have ended."""

DEVICES = (
    ("fsync-stall", "sync", "a sync"),
    ("fallocate-stall", "allocate", "an allocation"),
    ("disk-read-stall", "read", "a read"),
)
"""Signature, kind of wait, and its name in a sentence."""

OWNED_KINDS = frozenset({"mutex", "rwlock", "futex", "spin"})


def findings(scene: Scene) -> list[Finding]:
    """Return the findings that are possible for any program."""
    out = _cycles(scene)
    left = _unexplained(scene)
    convoy = _convoy(scene, left)
    if convoy is not None:
        out.append(convoy[0])
        left = [index for index in left if index not in convoy[1]]
    out += [f for item in DEVICES if (f := _device(scene, left, *item)) is not None]
    saturated = _cpus(scene)
    if saturated is not None:
        out.append(saturated)
    unknown = _unknown(scene, left)
    if unknown is not None:
        out.append(unknown)
    return out


def _unexplained(scene: Scene) -> list[int]:
    in_cycles = {index for cycle in scene.cycles for index in cycle}
    return [
        index
        for index in scene.active
        if scene.states[index] == WAITING and index not in scene.assigned and index not in in_cycles
    ]


def _weak_where_brief(scene: Scene, threads: Sequence[int], score: float) -> float:
    return min(score, WEAK_CAP) if scene.is_brief(threads) else score


def _make(
    signature: Signature,
    scene: Scene,
    threads: Sequence[int],
    confidence: float,
    evidence: Sequence[str],
    *,
    blocker: Candidate | None = None,
    against: Sequence[str] = (),
) -> Finding:
    count = scene.weight(threads)
    return Finding(
        signature=signature.id,
        title=signature.title,
        confidence=round(confidence, 2),
        threads=count,
        blocker=scene.blocker(blocker) if blocker else None,
        waiters=waiter_groups(scene, threads),
        locks=scene.locks_of(threads),
        chain=(
            Link(
                signature.id, count, scene.capture.threads[blocker.thread].tid if blocker else None
            ),
        ),
        evidence=tuple(evidence),
        remedies=signature.remedies,
        references=signature.references,
        against=tuple(against),
        meaning=" ".join(signature.meaning.split()),
        members=tuple(i for i in threads if blocker is None or i != blocker.thread),
    )


def _cycles(scene: Scene) -> list[Finding]:
    """Find cycles whose lock words did not change: threads that wait for each other forever."""
    signature = scene.catalog.by_id.get("mutex-deadlock")
    if signature is None:
        return []
    out = []
    for cycle in scene.cycles:
        edges = [scene.graph.by_waiter[index] for index in cycle]
        if any(scene.states[index] == RUNNING for index in cycle):
            continue
        members = set(cycle)
        queue = [index for index in scene.graph.by_waiter if scene.graph.ends[index][0] in members]
        says = []
        for edge in edges:
            lock = scene.lock_of(edge.waiter)
            assert lock is not None
            itself = ", which is itself" if edge.owner == edge.waiter else ""
            says.append(
                f"{scene.say(edge.waiter)} waits for {lock_words(lock)}{itself}: "
                f"it {scene.doing(edge.waiter)}"
            )
        others = scene.weight(queue) - scene.weight(cycle)
        if others:
            says.append(f"{wait(others)} queued behind the deadlock cycle")
        out.append(
            _make(
                signature,
                scene,
                queue,
                CYCLE,
                says,
                blocker=Candidate(
                    cycle[0], edges[0].source, "is in the deadlock cycle", 0.0, chains=False
                ),
            )
        )
    return out


def _convoy(scene: Scene, left: Sequence[int]) -> tuple[Finding, set[int]] | None:
    """Find the lock that most of the unexplained threads wait for."""
    signature = scene.catalog.by_id.get("futex-convoy")
    if signature is None:
        return None
    counts: Counter[int] = Counter()
    for index in left:
        number = scene.capture.threads[index].lock
        wait = scene.shape(index).wait
        if number is not None and (wait is None or wait.kind in OWNED_KINDS or wait.contends):
            lock = scene.lock_of(index)
            if lock is not None and lock.kind not in ("cond", "join"):
                counts[number] += scene.capture.threads[index].count
    if not counts:
        return None
    number, count = counts.most_common(1)[0]
    share = count / max(1, scene.weight(scene.active))
    if count < signature.min_waiters or share < UNKNOWN_SHARE:
        return None
    threads = [i for i in left if scene.capture.threads[i].lock == number]
    lock = scene.capture.locks[number]
    blocker = by_lock(scene, threads)
    says = [f"{count} threads wait for {lock_words(lock)}"]
    sites = Counter(scene.shape(i).site() for i in threads).most_common(3)
    says.append("they are in " + ", ".join(f"{site} ({number})" for site, number in sites))
    says += releases.described(scene, threads)
    against = []
    if blocker is not None:
        says.append(f"{scene.say(blocker.thread)} owns it: it {scene.doing(blocker.thread)}")
    else:
        against.append("the lock word does not name a thread of this capture")
    score = 0.35 + 0.25 * share + (blocker.strength if blocker else 0.0)
    score = _weak_where_brief(scene, threads, score)
    finding = _make(
        signature, scene, threads, min(score, CAP), says, blocker=blocker, against=against
    )
    return finding, set(threads)


def _device(scene: Scene, left: Sequence[int], name: str, kind: str, what: str) -> Finding | None:
    """Find threads that wait for a device together and match no signature."""
    signature = scene.catalog.by_id.get(name)
    if signature is None:
        return None
    known = {
        index
        for other, threads in scene.holders.items()
        if scene.waiters.get(other)
        for index in threads
    }
    threads = []
    for index in left:
        wait = scene.shape(index).wait
        if wait is not None and wait.kind == kind and index not in known:
            threads.append(index)
    count = scene.weight(threads)
    share = count / max(1, scene.weight(scene.active))
    at_once = scene.at_once(threads)
    if at_once < signature.min_waiters or share < UNKNOWN_SHARE:
        return None
    sites = Counter(scene.shape(i).excerpt() for i in threads).most_common(3)
    says = [f"{count} threads are in {what} of a file at the same time"]
    says += [f"{number} of them in {site}" for site, number in sites]
    score = (0.35 + 0.35 * share) * at_once / (at_once + 2)
    return _make(signature, scene, threads, score, says)


def _cpus(scene: Scene) -> Finding | None:
    """Return when twice as many threads want to run as there are CPUs; only where states are
    known."""
    signature = scene.catalog.by_id.get("cpu-saturated")
    cpus = scene.capture.host.get("cpus")
    if signature is None or not isinstance(cpus, int) or cpus < 1:
        return None
    threads = [
        index
        for index, item in enumerate(scene.capture.threads)
        if item.state == "R" and scene.states[index] == RUNNING
    ]
    count = scene.weight(threads)
    share = count / max(1, scene.weight(scene.active))
    if count < max(signature.min_waiters, 2 * cpus) or share < 0.5:
        return None
    sites = Counter(scene.shape(i).site() for i in threads).most_common(3)
    says = [
        f"{count} threads of this process are runnable, the host has {cpus} CPUs",
        "most of them in " + ", ".join(f"{site} ({number})" for site, number in sites),
    ]
    score = 0.15 + 0.2 * share + 0.02 * min(15.0, count / cpus)
    return _make(signature, scene, threads, score, says)


def _unknown(scene: Scene, left: Sequence[int]) -> Finding | None:
    """Return a stall without a signature: what the waiters share, and which session differs."""
    places: dict[str, list[int]] = {}
    for index in left:
        shape = scene.shape(index)
        kind = shape.wait.kind if shape.wait is not None else ""
        if shape.present & scene.catalog.asked:
            continue
        if (shape.session and kind not in WORKS) or (shape.wait and shape.wait.contends):
            places.setdefault(shape.site(), []).append(index)
    if not places:
        return None
    site, threads = max(places.items(), key=lambda item: scene.weight(item[1]))
    count = scene.weight(threads)
    share = count / max(1, scene.weight(scene.active))
    at_once = scene.at_once(threads)
    if at_once < LEAST_UNKNOWN or share < UNKNOWN_SHARE:
        return None
    blocker = by_lock(scene, threads)
    if blocker is None:
        blocker = _differs(scene, threads)
    says = [f"{count} threads wait in {site}", f"they share {_shared(scene, threads)}"]
    says += releases.described(scene, threads)
    against = ["no signature matches this wait"]
    if blocker is not None:
        says.append(f"{scene.say(blocker.thread)} {blocker.role}: it {scene.doing(blocker.thread)}")
    if _nameless(scene.capture):
        against.append("many frames have no names: install debug symbols of the server")
    score = min((0.35 + 0.3 * share) * at_once / (at_once + 2), UNKNOWN_CAP)
    score = _weak_where_brief(scene, threads, score)
    return Finding(
        signature=None,
        title=f"{count} threads wait in {site}, for an unknown reason",
        confidence=round(max(score, 0.0), 2) if not scene.excerpt else min(score, WEAK_CAP),
        threads=count,
        blocker=scene.blocker(blocker) if blocker else None,
        waiters=waiter_groups(scene, threads),
        locks=scene.locks_of(threads),
        chain=(),
        evidence=tuple(says),
        remedies=(
            "Take two more captures and compare: is the same thread still the blocker?",
            "Check the statements of these threads in the server's process list.",
        ),
        against=tuple(against),
        members=tuple(threads),
    )


def _differs(scene: Scene, threads: Sequence[int]) -> Candidate | None:
    """Return the one session that is neither idle nor among the waiters."""
    mine = set(threads) | scene.own
    others = [
        index
        for index in scene.active
        if index not in mine and scene.shape(index).session and scene.states[index] != IDLE
    ]
    if scene.weight(others) != 1:
        return None
    return Candidate(
        others[0], "frames", "is the only session that does something else", 0.1, False
    )


def _shared(scene: Scene, threads: Sequence[int]) -> str:
    """Return the frames that all of the threads have in common from the wait outwards."""
    stacks = [scene.shape(index).frames[scene.shape(index).depth :] for index in threads]
    common = 0
    for rank in zip(*stacks, strict=False):
        if len(set(rank)) > 1:
            break
        common += 1
    frames = stacks[0][:common]
    if not frames:
        return "no frame next to the wait"
    return " < ".join(frames[:8])


def _nameless(capture: Capture) -> bool:
    total = unnamed = 0
    for thread in capture.threads[:200]:
        for frame in thread.frames:
            total += 1
            unnamed += frame.symbol is None
    return unnamed * 5 > total

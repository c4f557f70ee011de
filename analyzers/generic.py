# SPDX-License-Identifier: Apache-2.0
"""Cases without a server's frames: cycles, convoys, devices, CPUs, and waits without a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from stallscope.analyzers import files, releases, subsystems
from stallscope.analyzers.analysis import STALL_SHARE
from stallscope.analyzers.blame import RING, Case
from stallscope.analyzers.blocker import by_lock
from stallscope.analyzers.catalog import Catalog, Signature
from stallscope.analyzers.evidence import lock_words
from stallscope.analyzers.scene import Candidate, Scene, wait
from stallscope.analyzers.waits import IDLE, RUNNING, WAITING, WORKS
from stallscope.model.capture import Capture

__all__ = ["cases"]

CONVOY = "futex-convoy"
UNNAMED = "unnamed"
DEVICES = (
    ("fsync-stall", "sync", "a sync"),
    ("fallocate-stall", "allocate", "an allocation"),
    ("disk-read-stall", "read", "a read"),
)
"""Signature, kind of wait, and its name in a sentence."""

OWNED_KINDS = frozenset({"mutex", "rwlock", "futex", "spin"})
OTHERS = 3
"""Places of threads that do something else, which a wait without a name lists."""
WORDS = {
    "mutex": "a mutex",
    "rwlock": "a read-write lock",
    "futex": "a lock",
    "spin": "a lock",
    "cond": "a condition",
    "sem": "a semaphore",
    "sleep": "its turn to try again",
}
"""Kind of wait, in a sentence."""


def cases(scene: Scene, known: Collection[Case]) -> list[Case]:
    """Return the cases that are possible for any program, of threads that none of the known cases
    holds up."""
    out = _cycles(scene)
    taken = {index for case in known for index in case.held_up}
    left = [index for index in _unexplained(scene) if index not in taken]
    convoy = _convoy(scene, left)
    if convoy is not None:
        out.append(convoy)
        left = [index for index in left if index not in convoy.waiters]
    frozen = _frozen(scene, left)
    if frozen is not None:
        out.append(frozen)
        left = [index for index in left if index not in frozen.waiters]
    out += [case for item in DEVICES if (case := _device(scene, left, *item)) is not None]
    out += [case for case in (_cpus(scene), _unnamed(scene, left)) if case is not None]
    return out


def _unexplained(scene: Scene) -> list[int]:
    in_cycles = {index for cycle in scene.cycles for index in cycle}
    return [
        index
        for index in scene.active
        if scene.states[index] == WAITING and index not in scene.assigned and index not in in_cycles
    ]


def _cycles(scene: Scene) -> list[Case]:
    """Find cycles whose lock words did not change: threads that wait for each other forever."""
    signature = scene.catalog.by_id.get(RING)
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
        blocker = Candidate(cycle[0], edges[0].source, "is in the deadlock cycle", chains=False)
        out.append(Case(signature, tuple(queue), blocker, says=tuple(says), closed=True))
    return out


def _convoy(scene: Scene, left: Sequence[int]) -> Case | None:
    """Find the lock that most of the unexplained threads wait for."""
    signature = scene.catalog.by_id.get(CONVOY)
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
    if count < signature.min_waiters or share < STALL_SHARE:
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
    return Case(signature, tuple(threads), blocker, says=tuple(says), against=tuple(against))


def _frozen(scene: Scene, left: Sequence[int]) -> Case | None:
    """Find threads that change a file on a frozen file system, and match no signature."""
    signature = scene.catalog.by_id.get("file-system-frozen")
    threads = [index for index in left if files.is_frozen(scene.capture.threads[index])]
    if signature is None or scene.weight(threads) < signature.min_waiters:
        return None
    shown = {files.text(scene.capture.threads[index]) for index in threads}
    says = [f"{wait(scene.weight(threads))} until a file system is thawed"]
    says += [f"a thread is blocked in {file}" for file in sorted(filter(None, shown))[:OTHERS]]
    return Case(signature, tuple(threads), None, says=tuple(says), sure=True)


def _device(scene: Scene, left: Sequence[int], name: str, kind: str, what: str) -> Case | None:
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
    if at_once < signature.min_waiters or share < STALL_SHARE:
        return None
    sites = Counter(scene.shape(i).excerpt() for i in threads).most_common(3)
    says = [f"{count} threads are in {what} of a file at the same time"]
    says += [f"{number} of them in {site}" for site, number in sites]
    return Case(signature, tuple(threads), None, says=tuple(says))


def _cpus(scene: Scene) -> Case | None:
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
    return Case(signature, tuple(threads), None, says=tuple(says))


def _unnamed(scene: Scene, left: Sequence[int]) -> Case | None:
    """Return the wait without a name in which most threads are: what they share, who differs."""
    signature = _no_signature(scene.catalog)
    places: dict[str, list[int]] = {}
    for index in left:
        shape = scene.shape(index)
        kind = shape.wait.kind if shape.wait is not None else ""
        if shape.present & scene.catalog.asked:
            continue
        if (shape.session and kind not in WORKS) or (shape.wait and shape.wait.contends):
            places.setdefault(shape.site(), []).append(index)
    if not places or signature is None:
        return None
    site, threads = max(places.items(), key=lambda item: scene.weight(item[1]))
    count = scene.weight(threads)
    share = count / max(1, scene.weight(scene.active))
    at_once = scene.at_once(threads)
    # Somebody has chosen the threads of a dump without idle ones: each of them says something.
    least = 1 if scene.chosen else signature.min_waiters
    if at_once < least or share < STALL_SHARE:
        return None
    what = _kind_of_wait(scene, threads)
    part = _part_of_program(scene, threads)
    says = [f"{wait(count)} for {what} in {site}", f"they share {_shared(scene, threads)}"]
    says += releases.described(scene, threads)
    against = ["no signature matches this wait"]
    blocker = by_lock(scene, threads) or _differs(scene, threads)
    if blocker is not None:
        says.append(f"{scene.say(blocker.thread)} {blocker.role}: it {scene.doing(blocker.thread)}")
    else:
        says += _others(scene, threads)
        against.append("no thread of this capture is known to block them")
    if _nameless(scene.capture):
        against.append("many frames have no names: install debug symbols of the server")
    who = "1 thread waits" if count == 1 else f"{count} threads wait"
    of = f" ({part})" if part else ""
    return Case(
        signature,
        tuple(threads),
        blocker,
        title=f"{who} for {what} in {site}{of}, for an unknown reason",
        says=tuple(says),
        against=tuple(against),
        unnamed=True,
    )


def _no_signature(catalog: Catalog) -> Signature | None:
    """Return what stands for a signature where none fits: a convoy of any kind of wait."""
    convoy = catalog.by_id.get(CONVOY)
    if convoy is None:
        return None
    return msgspec.structs.replace(
        convoy,
        id=UNNAMED,
        references=(),
        remedies=(
            "Take two more captures and compare: is the same thread still the blocker?",
            "Check the statements of these threads in the server's process list.",
        ),
    )


def _kind_of_wait(scene: Scene, threads: Sequence[int]) -> str:
    """Return what most of the threads wait for, in words."""
    kinds: Counter[str] = Counter()
    for index in threads:
        found = scene.shape(index).wait
        kinds[found.kind if found is not None else ""] += scene.capture.threads[index].count
    return WORDS.get(kinds.most_common(1)[0][0], "something")


def _part_of_program(scene: Scene, threads: Sequence[int]) -> str:
    """Return the title of the subsystem that most of the threads wait in; empty: not known."""
    known = subsystems.load()
    parts: Counter[str] = Counter()
    for index in threads:
        shape = scene.shape(index)
        parts[known.of_stack(shape.names, shape.depth)] += scene.capture.threads[index].count
    found = known.by_name.get(parts.most_common(1)[0][0])
    return found.title if found is not None else ""


def _others(scene: Scene, threads: Sequence[int]) -> list[str]:
    """Return what the other threads that are not idle do: one of them may be the blocker."""
    mine = set(threads)
    places: Counter[str] = Counter()
    for index in scene.active:
        if index not in mine:
            places[scene.doing(index)] += scene.capture.threads[index].count
    return [
        f"{'1 other thread' if count == 1 else f'{count} other threads'}, each {place}"
        for place, count in places.most_common(OTHERS)
    ]


def _differs(scene: Scene, threads: Sequence[int]) -> Candidate | None:
    """Return the one session that is neither idle nor among the waiters."""
    mine = set(threads)
    others = [
        index
        for index in scene.active
        if index not in mine and scene.shape(index).session and scene.states[index] != IDLE
    ]
    if scene.weight(others) != 1:
        return None
    return Candidate(
        others[0],
        "frames",
        "is the only session that does something else",
        chains=False,
        certain=False,
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

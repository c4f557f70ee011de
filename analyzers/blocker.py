# SPDX-License-Identifier: Apache-2.0
"""Find the blocker: the owner in a lock word, else a thread in a holder's frames."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from stallscope.analyzers import releases
from stallscope.analyzers.catalog import Holder, Signature
from stallscope.analyzers.scene import Candidate, Scene
from stallscope.analyzers.waits import DISK, RUNNING
from stallscope.model.capture import Thread

__all__ = ["by_frames", "by_lock", "choose", "pending", "suspects"]


LEAST_SHARE = 0.5
"""The least share of waiters that an owner must block; otherwise a thread in a holder's frames
wins."""


ROUNDING_NS = 10**9
"""Servers count some of their times in seconds."""
AGES = "ages"
"""The source of a blocker that the ages of transactions and statements show."""
_DDL_TABLE = re.compile(
    r"\bTABLE\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?(?:`?[\w$]+`?\s*\.\s*)?`?([\w$]+)`?", re.IGNORECASE
)
_WORD = re.compile(r"[\w$]+")


def _rank(scene: Scene, thread: int) -> tuple[int, int]:
    """Order candidates: on a CPU, running, at the disk, waiting otherwise."""
    item = scene.capture.threads[thread]
    wait = scene.shape(thread).wait
    if item.on_cpu:
        return 0, thread
    if scene.states[thread] == RUNNING:
        return 1, thread
    if wait is not None and wait.kind in DISK:
        return 2, thread
    return 3, thread


def by_lock(scene: Scene, waiters: Sequence[int]) -> Candidate | None:
    """Return the root of the chain of owners in which most waiters end."""
    roots: Counter[int] = Counter()
    nearest: dict[int, tuple[int, int]] = {}
    for index in waiters:
        end = scene.graph.ends.get(index)
        if end is not None:
            root, depth = end
            roots[root] += scene.capture.threads[index].count
            nearest[root] = min(nearest.get(root, (depth, index)), (depth, index))
    if not roots:
        return None
    root, count = roots.most_common(1)[0]
    first = nearest[root][1]
    edge = scene.graph.by_waiter[first]
    share = count / max(1, scene.weight(waiters))
    certain = edge.lock not in scene.graph.unstable
    return Candidate(
        thread=root,
        source=edge.source,
        role="owns the lock",
        chains=True,
        share=share,
        via=scene.graph.path(first)[:-1],
        certain=certain,
    )


def by_frames(scene: Scene, signature: Signature, waiters: Sequence[int]) -> Candidate | None:
    """Return the thread that matches the signature's first fitting holder entry."""
    mine = set(waiters)
    threads = scene.holders.get(signature.id, ())
    queued = pending(scene, signature, waiters)
    ddl = None if queued is None else scene.capture.threads[queued[0]]
    since = None if ddl is None else ddl.age_ns
    idle = _last_idle(scene, signature, mine, ddl)
    for number, holder in enumerate(signature.holders):
        if holder.waiting and idle is not None:
            return idle  # a waiter of the lock does not hold it
        fit = [
            index
            for index in threads
            if number in scene.shape(index).holder_of[signature.id]
            and (holder.waiting or index not in mine)
        ]
        if holder.waiting:
            fit = [index for index in fit if index in mine] or fit
        if holder.unique and since is not None:
            fit = [index for index in fit if not _began_after(scene, index, since)]
        if holder.running:
            fit = [index for index in fit if scene.states[index] == RUNNING]
        if not fit or (holder.unique and scene.weight(fit) > 1):
            continue
        best = min(fit, key=lambda index: _rank(scene, index))
        return Candidate(
            thread=best,
            source="frames",
            role=holder.role or "is in a function of the holder",
            chains=holder.certain,
            certain=not holder.unique,
        )
    return _pooled(scene, signature) or idle


def _began_after(scene: Scene, thread: int, waited_ns: int) -> bool:
    """Return whether what a connection does began when others had waited so long: it cannot hold
    what they wait for."""
    item = scene.capture.threads[thread]
    if item.age_ns is None:
        return False
    return max(item.age_ns, item.transaction_ns or 0) + ROUNDING_NS < waited_ns


def _pooled(scene: Scene, signature: Signature) -> Candidate | None:
    """Return a thread that another capture of the burst, or a sample, shows as the holder."""
    if scene.pool is None or not scene.pool.covers(signature.id):
        return None
    sighting = scene.pool.best(signature.id)
    thread = None if sighting is None else scene.thread_of(sighting.process, sighting.tid)
    if sighting is None or thread is None:
        return None
    return Candidate(
        thread=thread,
        source="frames",
        role=signature.holders[sighting.entry].role or "is in a function of the holder",
        chains=True,
        sighting=sighting,
    )


def _last_idle(
    scene: Scene, signature: Signature, waiters: set[int], ddl: Thread | None
) -> Candidate | None:
    """Return the one idle connection, or the one in a transaction, where all others wait; of
    several in transactions the oldest that can have what the waiters wait for."""
    several = signature.min_waiters > 1  # then being left over says too little
    if not signature.idle_holder:
        return None
    if several and not signature.in_transaction:
        return _since_then(scene, signature, waiters)
    others = set(scene.active) - waiters
    if any(scene.shape(index).session for index in others):
        return _nearest(scene, signature, waiters, ddl)
    idle = scene.idle_connections
    role = "is the only connection that does not wait, so it probably holds the lock"
    if signature.in_transaction and (several or scene.weight(idle) > 1):
        idle = tuple(index for index in idle if scene.capture.threads[index].transaction)
        role = "is the only idle connection in a transaction, so it probably holds the lock"
    if scene.weight(idle) != 1:
        return _nearest(scene, signature, waiters, ddl)
    return Candidate(idle[0], "frames", role, chains=False, certain=False)


def _nearest(
    scene: Scene, signature: Signature, waiters: set[int], ddl: Thread | None
) -> Candidate | None:
    if signature.in_transaction:
        return _oldest(scene, ddl)
    return _since_then(scene, signature, waiters)


def _since_then(scene: Scene, signature: Signature, waiters: set[int]) -> Candidate | None:
    """Return the connection that did its last statement just before the first of the waits began:
    what a session keeps, it took then. None where two are equally near."""
    threads = scene.capture.threads
    waited = scene.oldest_statement_ns(waiters)
    if signature.kept != "session" or not waited:
        return None
    before = sorted(
        (threads[index].age_ns or 0, index)
        for index in scene.idle_connections
        if threads[index].rests and (threads[index].age_ns or 0) >= waited
    )
    if not before or (len(before) > 1 and before[0][0] == before[1][0]):
        return None
    role = "has been idle since just before the first wait: it probably holds the lock"
    return Candidate(before[0][1], AGES, role, chains=False, certain=False)


def _oldest(scene: Scene, ddl: Thread | None) -> Candidate | None:
    """Return the oldest idle connection whose transaction began before the longest wait; those
    whose last statement names the table of the DDL come first."""
    threads = scene.capture.threads
    if ddl is None or ddl.age_ns is None:
        return None
    older = [
        index
        for index in scene.idle_connections
        if threads[index].transaction
        and (threads[index].transaction_ns or 0) + ROUNDING_NS >= ddl.age_ns
    ]
    if not older:
        return None
    table = _table(ddl.query)
    named = [index for index in older if table and table in _words(threads[index].query)]
    best = max(named or older, key=lambda index: (threads[index].transaction_ns or 0, -index))
    about = f"its last statement names {table}" if named else "its table is not known"
    role = (
        "is the oldest idle transaction, and began before the wait:"
        f" it probably holds the lock ({about})"
    )
    return Candidate(best, AGES, role, chains=False, certain=False)


def _table(query: str | None) -> str | None:
    """Return the name of the table of a DDL, without its schema."""
    found = _DDL_TABLE.search(query or "")
    return found.group(1).lower() if found else None


def _words(query: str | None) -> set[str]:
    return {word.lower() for word in _WORD.findall(query or "")}


def suspects(scene: Scene, signature: Signature, waiters: Sequence[int]) -> tuple[int, ...]:
    """Return the threads of which one is likely the holder, the most likely first."""
    others = set(waiters)
    numbers = {number for number, holder in enumerate(signature.holders) if holder.unique}
    found = [
        index
        for index in scene.holders.get(signature.id, ())
        if index not in others and numbers.intersection(scene.shape(index).holder_of[signature.id])
    ]
    return tuple(sorted(found, key=lambda index: _rank(scene, index)))


def pending(
    scene: Scene, signature: Signature, waiters: Sequence[int]
) -> tuple[int, Holder] | None:
    """Return the waiter that others queue behind, such as a DDL, and its entry."""
    for number, holder in enumerate(signature.holders):
        if holder.waiting:
            for index in waiters:
                if number in scene.shape(index).holder_of.get(signature.id, ()):
                    return index, holder
    return None


def choose(scene: Scene, signature: Signature, waiters: Sequence[int]) -> Candidate | None:
    """Return the blocker: the lock's owner before frames, both together best. The last releaser
    comes before a thread that is only left over.
    """
    owner = by_lock(scene, waiters)
    stands = by_frames(scene, signature, waiters)
    if stands is None or not stands.certain:
        stands = releases.blocker(scene, signature, waiters) or stands
    if owner is None or (stands is not None and owner.share < LEAST_SHARE):
        return stands
    numbers = scene.shape(owner.thread).holder_of.get(signature.id, ())
    fits = bool(numbers)
    known = any(not signature.holders[number].unique for number in numbers)
    if not owner.certain and signature.holders and not known:
        return stands  # the lock word was read at another moment than the stack
    role = owner.role
    if stands is not None and fits:
        role = f"{owner.role} and {stands.role}" if stands.thread == owner.thread else owner.role
    return msgspec.structs.replace(owner, role=role)

# SPDX-License-Identifier: Apache-2.0
"""Evidence in sentences: for a case, against it, and what is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stallscope.analyzers import files, releases
from stallscope.analyzers.blame import Case
from stallscope.analyzers.blocker import pending, suspects
from stallscope.analyzers.pool import Sighting
from stallscope.analyzers.scene import Scene, wait
from stallscope.analyzers.waits import UNSEEN, WAITING
from stallscope.model.capture import Label, Lock, LockKind

__all__ = ["collect", "lock_words"]

SUSPECTS = 3
"""The most likely holders that are named."""

_KINDS = {
    LockKind.MUTEX: "the mutex",
    LockKind.RWLOCK: "the read-write lock",
    LockKind.COND: "the condition variable",
    LockKind.SEM: "the semaphore",
    LockKind.JOIN: "the end of a thread,",
    LockKind.INTERNAL: "the server's own lock",
}


def collect(scene: Scene, case: Case, victims: Sequence[Case]) -> tuple[list[str], list[str]]:
    """Return the evidence for the case, and that against it with what is unknown."""
    if case.says is not None:
        return [*case.says, *_behind(scene, case, victims)], [*case.against]
    says: list[str] = []
    against: list[str] = []
    own = scene.weight(case.waiters)
    waiting = scene.weight(i for i in scene.active if scene.states[i] == WAITING)
    if case.waiters:
        sites = Counter[str]()
        for index in case.waiters:
            sites[scene.place(index)] += scene.capture.threads[index].count
        site, most = sites.most_common(1)[0]
        if case.signature.busy:
            says.append(f"{own} threads are busy with this; {most} of them in {site}")
        else:
            whole = max(waiting, own)
            says.append(
                f"{own} of {whole} waiting threads are in this wait; {most} of them in {site}"
            )
    if case.held_up:
        count = scene.weight(case.held_up)
        inside = "1 thread is" if count == 1 else f"{count} threads are"
        says.append(f"{inside} in this call of the device")
    if scene.samples > 1:
        says.append(f"the dump adds up {scene.samples} samples: divide its counts by that")
    says += _behind(scene, case, victims)
    for lock in scene.locks_of(case.waiters)[:3]:
        says.append(f"{wait(lock.waiters)} for {lock_words(lock)}")
        name = lock.symbol or hex(lock.address)
        if not lock.stable and lock.kind is not LockKind.COND:
            against.append(
                f"the owner of {name} changed while it was read: the lock changes hands quickly"
            )
        elif lock.kind is LockKind.MUTEX and lock.source == "futex" and not lock.owner_tid:
            against.append(f"{name} had no owner when it was read: the lock changes hands quickly")
    if scene.is_brief(case.waiters):
        against.append("none of these waits had lasted 10 ms at the capture")
    says += releases.described(scene, case.waiters)
    _blocker(scene, case, says, against)
    between = pending(scene, case.signature, case.waiters)
    if between is not None and (case.blocker is None or between[0] != case.blocker.thread):
        says.append(f"{scene.say(between[0])} {between[1].role}")
    says += _likely(scene, case)
    against += _nobody(scene, case)
    if case.signature.device and case.waiters:
        others = scene.syncing - {case.blocker.thread if case.blocker else -1}
        if others:
            where = ", ".join(sorted({scene.shape(index).excerpt(2) for index in others})[:3])
            says.append(f"{wait(scene.weight(others))} for a device at the same time, in {where}")
    for rival in scene.rivals(case.waiters, case.signature):
        against.append(f"the same frames also fit {rival}, and no other thread distinguishes them")
    if case.root is not None and case.signature.id in scene.catalog.by_id[case.root].explains:
        against.append(f"{case.root} prolongs these waits and is closer to the cause")
    elif case.root is not None:
        against.append(f"its blocker waits too: {case.root} is closer to the cause")
    return says, against


def _behind(scene: Scene, case: Case, victims: Sequence[Case]) -> list[str]:
    """Return what waits in other signatures for the same reason."""
    return [
        f"{wait(scene.weight(victim.waiters))} in {victim.signature.id}, "
        + (
            "which this prolongs"
            if victim.signature.id in case.signature.explains
            else "whose blocker waits here"
        )
        for victim in victims
    ]


def _blocker(scene: Scene, case: Case, says: list[str], against: list[str]) -> None:
    """Add what is known of the blocker, and what is not."""
    if case.blocker is None:
        return
    thread = case.blocker.thread
    now = "it now" if case.blocker.source == releases.SOURCE else "it"
    doing = scene.doing(thread)
    if case.blocker.sighting is not None:
        now, doing = "it", _seen(case.blocker.sighting)
    says.append(f"{scene.say(thread)} {case.blocker.role}: {now} {doing}")
    file = files.text(scene.capture.threads[thread])
    if file is not None and case.blocker.sighting is None:
        says.append(f"{scene.say(thread)} is blocked in {file}")
    if case.blocker.via:
        says.append(
            "between the waiters and the blocker: "
            + ", ".join(f"{scene.say(i)} in {scene.shape(i).site()}" for i in case.blocker.via[:5])
        )
    if not case.blocker.certain and case.blocker.source == "frames":
        against.append("no lock word names the blocker: it was chosen by its stack")
    if case.blocker.source == releases.SOURCE:
        against.append(
            "the current holder was not seen, only the thread that released the lock last"
        )
        against += [case.blocker.unseen] if case.blocker.unseen else []
    item = scene.capture.threads[thread]
    if item.label is Label.RACED and item.frames:
        against.append("the blocker ran while its stack was copied: its frames may be inconsistent")


def _seen(sighting: Sighting) -> str:
    """Return what a thread did at another moment of the burst."""
    when = "on a CPU between two captures" if sighting.moment is None else "in another capture"
    return f"was seen {when}, in {sighting.shape.excerpt()}"


def lock_words(lock: Lock) -> str:
    """Name a lock and its owner in a sentence."""
    kind = _KINDS.get(lock.kind, "the lock")
    where = f"{lock.address:#x}"
    shown = lock.symbol and lock.address and lock.kind is not LockKind.ROW  # a record has none
    name = f"{lock.symbol} ({where})" if shown else lock.symbol or where
    if lock.owner_tid:
        return f"{kind} {name}, owned by thread {lock.owner_tid}"
    if lock.readers:
        return f"{kind} {name}, held by {lock.readers} readers (not named by the lock)"
    return f"{kind} {name}"


def _likely(scene: Scene, case: Case) -> list[str]:
    """Name the threads that can be the holder, where there are several."""
    named = case.blocker is not None and not case.blocker.certain
    if named or not case.signature.idle_holder or not _holder_open(case):
        return []
    found = suspects(scene, case.signature, case.waiters)
    count = scene.weight(found)
    return [
        f"likely holder, one of {count} running threads: {scene.say(index)}: it "
        + scene.doing(index)
        for index in found[:SUSPECTS]
    ]


def _holder_open(case: Case) -> bool:
    """Return whether the holder is unknown."""
    blocker = case.blocker
    return blocker is None or not blocker.certain or blocker.thread in case.waiters


def _nobody(scene: Scene, case: Case) -> list[str]:
    """Return what the stacks do not show about the holder."""
    if not _holder_open(case):
        return []
    blocker = case.blocker
    idle = scene.weight(i for i in scene.idle_connections if blocker is None or i != blocker.thread)
    unseen = scene.weight(i for i, state in enumerate(scene.states) if state == UNSEEN)
    if case.signature.idle_holder and unseen and blocker is None:
        return [f"the holder can be one of the {unseen} unseen threads, which look idle"]
    if case.signature.idle_holder and idle:
        if blocker is not None and not blocker.certain:
            other = "other " if blocker.thread in scene.idle_connections else ""
            return [f"the holder can also be {_one_of(idle, other)}"]
        it = "what the blocker waits for" if blocker is not None else "it"
        return [f"stacks do not show who holds {it}; it can be {_one_of(idle)}"]
    if blocker is None:
        return ["no thread of this capture is known to hold it"]
    return []


def _one_of(count: int, other: str = "") -> str:
    if count == 1:
        return f"the {other or 'only '}idle connection"
    return f"one of the {count} {other}idle connections"

# SPDX-License-Identifier: Apache-2.0
"""Findings of the catalog's signatures: their waiters, their blocker, what it blocks in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from stallscope.analyzers.analysis import Blocker, Finding, Link, WaiterGroup
from stallscope.analyzers.catalog import Catalog, Signature
from stallscope.analyzers.graph import Graph
from stallscope.analyzers.stacks import Shape, Stacks
from stallscope.analyzers.waits import DISK, IDLE, RUNNING, WAITING
from stallscope.model import Capture, Label, Lock

__all__ = ["Candidate", "Scene", "findings", "order", "waiter_groups"]

EXCERPT = 3
"""A dump of so few threads is a piece of one: small counts do not speak against a stall."""

WEAK_CAP = 0.45
EXCERPT_CAP = 0.6
FEW_CAP = 0.25
CAP = 0.98

MAX_WAITER_GROUPS = 10
MAX_LOCKS = 10


class Candidate(msgspec.Struct, frozen=True):
    """A thread that may be the blocker. ``strength``: how sure that is, added to the confidence."""

    thread: int
    source: str
    """``futex`` and the like: a lock word says so; ``frames``: it stands where a holder stands."""
    role: str
    strength: float
    chains: bool
    """Sure enough that what blocks it is the root of this stall."""
    via: tuple[int, ...] = ()
    """Owners between the waiters and this root."""


class Scene:
    """One capture with all that is known of its threads."""

    def __init__(
        self,
        *,
        capture: Capture,
        catalog: Catalog,
        stacks: Stacks,
        states: Sequence[str],
        graph: Graph,
        rings: Sequence[tuple[int, ...]],
    ) -> None:
        self.capture = capture
        self.catalog = catalog
        self.stacks = stacks
        self.states = states
        self.graph = graph
        self.rings = rings

    def shape(self, thread: int) -> Shape:
        return self.stacks.shapes[thread]

    def weight(self, threads: Iterable[int]) -> int:
        """Return how many threads these stand for."""
        return sum(self.capture.threads[index].count for index in threads)

    @cached_property
    def total(self) -> int:
        return self.weight(range(len(self.capture.threads)))

    @cached_property
    def excerpt(self) -> bool:
        return self.total <= EXCERPT

    @cached_property
    def holders(self) -> dict[str, tuple[int, ...]]:
        """Signature id → threads in one of its holder frames, idle ones left out."""
        out: dict[str, list[int]] = {}
        for index, shape in enumerate(self.stacks.shapes):
            if shape.holder_of and self.states[index] != IDLE:
                for name in shape.holder_of:
                    out.setdefault(name, []).append(index)
        return {name: tuple(threads) for name, threads in out.items()}

    @cached_property
    def assigned(self) -> dict[int, Signature]:
        """Waiting thread → the signature that its wait belongs to."""
        out: dict[int, Signature] = {}
        for index, thread in enumerate(self.capture.threads):
            if self.states[index] != WAITING:
                continue
            by_lock = None
            if thread.lock is not None and thread.lock < len(self.capture.locks):
                symbol = self.capture.locks[thread.lock].symbol
                if symbol:
                    by_lock = self.catalog.lock_names.get(symbol.partition("+")[0])
            if by_lock is not None and self._usable(self.catalog.by_id[by_lock], index):
                out[index] = self.catalog.by_id[by_lock]
                continue
            for signature in self.shape(index).waiter_of:
                if self._usable(signature, index):
                    out[index] = signature
                    break
        return out

    def _usable(self, signature: Signature, thread: int) -> bool:
        if signature.holder_use != "required":
            return True
        return any(holder != thread for holder in self.holders.get(signature.id, ()))

    @cached_property
    def waiters(self) -> dict[str, tuple[int, ...]]:
        out: dict[str, list[int]] = {}
        for index, signature in self.assigned.items():
            out.setdefault(signature.id, []).append(index)
        return {name: tuple(threads) for name, threads in out.items()}

    @cached_property
    def active(self) -> tuple[int, ...]:
        """Threads that have something to do: the whole that a finding explains its share of.

        Background threads that wait for their own events are none of them.
        """
        out = []
        for index, state in enumerate(self.states):
            shape = self.shape(index)
            if state == IDLE:
                continue
            known = index in self.assigned or shape.session
            wait = shape.wait
            if state == WAITING and not known:
                known = self.capture.threads[index].lock is not None or (
                    wait is not None and (wait.contends or wait.kind in DISK)
                )
            if known or state == RUNNING:
                out.append(index)
        return tuple(out)

    def lock_of(self, thread: int) -> Lock | None:
        number = self.capture.threads[thread].lock
        if number is None or not 0 <= number < len(self.capture.locks):
            return None
        return self.capture.locks[number]

    def locks_of(self, threads: Iterable[int]) -> tuple[Lock, ...]:
        """Return the locks that the threads wait for, most waiters first, counted anew."""
        counts: Counter[int] = Counter()
        for index in threads:
            number = self.capture.threads[index].lock
            if number is not None and 0 <= number < len(self.capture.locks):
                counts[number] += self.capture.threads[index].count
        return tuple(
            msgspec.structs.replace(self.capture.locks[number], waiters=count)
            for number, count in counts.most_common(MAX_LOCKS)
        )

    def say(self, thread: int) -> str:
        """Name a thread in a sentence."""
        item = self.capture.threads[thread]
        name = f" ({item.name})" if item.name else ""
        return f"thread {item.tid}{name}" if item.tid else "a thread without a number"

    def blocker(self, candidate: Candidate) -> Blocker:
        item = self.capture.threads[candidate.thread]
        return Blocker(
            tid=item.tid,
            name=item.name,
            frames=self.shape(candidate.thread).frames,
            state=self.states[candidate.thread],
            source=candidate.source,
        )

    def doing(self, thread: int) -> str:
        """Say what a thread does, for a sentence."""
        shape = self.shape(thread)
        item = self.capture.threads[thread]
        if self.states[thread] == IDLE:
            return f"is idle: {shape.idle.what}" if shape.idle else "is idle"
        if self.states[thread] == RUNNING:
            where = "is on a CPU" if item.on_cpu else "is running"
        elif shape.wait is not None and shape.wait.kind in DISK:
            where = f"waits for the disk ({shape.wait.frame})"
        else:
            where = "waits"
        return f"{where} in {shape.excerpt()}"


def waiter_groups(scene: Scene, threads: Iterable[int]) -> tuple[WaiterGroup, ...]:
    """Group waiting threads by stack, largest first."""
    counts: Counter[tuple[str, ...]] = Counter()
    for index in threads:
        counts[scene.shape(index).frames] += scene.capture.threads[index].count
    return tuple(
        WaiterGroup(count=count, frames=frames)
        for frames, count in counts.most_common(MAX_WAITER_GROUPS)
    )


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
    """Return the root of the chain of owners that most of the waiters end in."""
    roots: Counter[int] = Counter()
    paths: dict[int, tuple[int, ...]] = {}
    for index in waiters:
        path = scene.graph.path(index)
        if path:
            roots[path[-1]] += scene.capture.threads[index].count
            if path[-1] not in paths or len(path) < len(paths[path[-1]]):
                paths[path[-1]] = path
    if not roots:
        return None
    root, count = roots.most_common(1)[0]
    edge = scene.graph.by_waiter.get(
        next(i for i in waiters if scene.graph.path(i)[-1:] == (root,))
    )
    share = count / max(1, scene.weight(waiters))
    strength = 0.10 + 0.10 * share
    if edge is not None and edge.lock in scene.graph.unstable:
        strength /= 2
    if scene.capture.threads[root].label is Label.RACED:
        strength *= 0.75
    return Candidate(
        thread=root,
        source=edge.source if edge is not None else "futex",
        role="owns the lock",
        strength=strength,
        chains=True,
        via=paths[root][:-1],
    )


def by_frames(scene: Scene, signature: Signature, waiters: Sequence[int]) -> Candidate | None:
    """Return the thread that stands in the signature's first fitting holder entry."""
    mine = set(waiters)
    threads = scene.holders.get(signature.id, ())
    for number, holder in enumerate(signature.holders):
        fit = [
            index
            for index in threads
            if number in scene.shape(index).holder_of[signature.id]
            and (holder.waiting or index not in mine)
        ]
        if holder.waiting:
            fit = [index for index in fit if index in mine] or fit
        if holder.running:
            fit = [index for index in fit if scene.states[index] == RUNNING]
        if not fit or (holder.unique and scene.weight(fit) > 1):
            continue
        if holder.unique and not scene.shape(fit[0]).session:
            continue
        best = min(fit, key=lambda index: _rank(scene, index))
        strength = 0.10 if holder.unique else 0.15 if holder.waiting else 0.20
        return Candidate(
            thread=best,
            source="frames",
            role=holder.role or "stands where the holder stands",
            strength=strength,
            chains=not holder.unique and not holder.waiting,
        )
    return None


def choose(scene: Scene, signature: Signature, waiters: Sequence[int]) -> Candidate | None:
    """Return the blocker: the lock's owner before frames, both together best."""
    owner = by_lock(scene, waiters)
    stands = by_frames(scene, signature, waiters)
    if owner is None:
        return stands
    fits = signature.id in scene.shape(owner.thread).holder_of
    named = any(
        lock.symbol and lock.symbol.partition("+")[0] in signature.locks
        for lock in scene.locks_of(waiters)[:1]
    )
    bonus = 0.08 if fits or named else 0.0
    role = owner.role
    if stands is not None and fits:
        role = f"{owner.role} and {stands.role}" if stands.thread == owner.thread else owner.role
    return msgspec.structs.replace(owner, strength=owner.strength + bonus, role=role)


class _Case(msgspec.Struct):
    """A signature that has waiters, or a holder that speaks for itself."""

    signature: Signature
    waiters: tuple[int, ...]
    blocker: Candidate | None
    root: str | None = None
    """Id of the signature that blocks this one's blocker."""


def findings(scene: Scene) -> list[Finding]:
    """Return a finding for each signature that fits, in no particular order."""
    cases: dict[str, _Case] = {}
    for signature in scene.catalog.signatures:
        if signature.generic:
            continue
        waiters = scene.waiters.get(signature.id, ())
        blocker = choose(scene, signature, waiters)
        if not waiters and not _speaks_alone(scene, signature, blocker):
            continue
        cases[signature.id] = _Case(signature, waiters, blocker)
    _link(scene, cases)
    return [_finding(scene, cases, case) for case in cases.values()]


def _speaks_alone(scene: Scene, signature: Signature, blocker: Candidate | None) -> bool:
    """Say whether the holder is enough: for entries that say so, and where others are explained."""
    if blocker is None:
        return False
    if any(scene.waiters.get(other) for other in signature.explains):
        return True
    numbers = scene.shape(blocker.thread).holder_of.get(signature.id, ())
    return scene.excerpt and any(signature.holders[number].alone for number in numbers)


def _link(scene: Scene, cases: dict[str, _Case]) -> None:
    """Find for each case the case that its blocker waits in."""
    for case in cases.values():
        if case.blocker is not None and case.blocker.chains:
            other = scene.assigned.get(case.blocker.thread)
            if other is not None and other.id != case.signature.id and other.id in cases:
                case.root = other.id
    for case in cases.values():
        if case.blocker is not None and case.blocker.chains:
            for name in case.signature.explains:
                if name in cases and cases[name].root is None and case.root != name:
                    cases[name].root = case.signature.id
    for name in cases:  # a ring of signatures has no root: break it where it closes
        seen = {name}
        at = cases[name]
        while at.root is not None:
            if at.root in seen:
                at.root = None
                break
            seen.add(at.root)
            at = cases[at.root]


def _victims(cases: dict[str, _Case], name: str) -> list[_Case]:
    """Return the cases that end in this one, the nearest first."""
    out: list[_Case] = []
    level = [name]
    while level:
        nearer = [case for case in cases.values() if case.root in level]
        out += nearer
        level = [case.signature.id for case in nearer]
    return out


def _finding(scene: Scene, cases: dict[str, _Case], case: _Case) -> Finding:
    signature = case.signature
    victims = _victims(cases, signature.id)
    mine = set(case.waiters)
    for victim in victims:
        mine.update(victim.waiters)
    blocked = mine - {case.blocker.thread if case.blocker else -1} or mine
    count = scene.weight(blocked)
    confidence = _confidence(scene, case, blocked)
    evidence, against = _evidence(scene, case, blocked, victims)
    chain = [
        Link(
            signature=item.signature.id,
            threads=scene.weight(item.waiters),
            tid=scene.capture.threads[item.blocker.thread].tid if item.blocker else None,
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
        evidence=tuple(evidence),
        remedies=signature.remedies,
        references=signature.references,
        against=tuple(against),
        meaning=" ".join(signature.meaning.split()),
        victim_of=case.root,
    )


def _confidence(scene: Scene, case: _Case, blocked: set[int]) -> float:
    signature = case.signature
    count = scene.weight(blocked)
    active = set(scene.active)
    if case.blocker is not None:
        active.discard(case.blocker.thread)
    whole = max(scene.weight(active | blocked), 1)
    share = count / whole
    score = 0.30 + 0.30 * share + 0.15 * min(1.0, count / 10)
    if case.blocker is not None:
        score += case.blocker.strength
    elif signature.idle_holder:
        score += 0.05
    if signature.explains:
        # What it explains waits for something else as well: its own queue has to show.
        score *= 0.7 + 0.3 * min(1.0, scene.weight(case.waiters) / 5)
    if scene.excerpt:
        few = count < signature.min_waiters and case.blocker is None
        return min(score + 0.05, FEW_CAP if few else EXCERPT_CAP)
    if not count:
        return min(score, WEAK_CAP)
    steady = 0.3 if signature.min_waiters == 1 else 2.0
    score *= count / (count + steady)
    if count < signature.min_waiters:
        score = min(score, WEAK_CAP)
    return min(score, CAP)


def _evidence(
    scene: Scene, case: _Case, blocked: set[int], victims: Sequence[_Case]
) -> tuple[list[str], list[str]]:
    """Return what speaks for the case, and what against it or is unknown."""
    says: list[str] = []
    against: list[str] = []
    own = scene.weight(case.waiters)
    waiting = scene.weight(i for i in scene.active if scene.states[i] == WAITING)
    if case.waiters:
        sites = Counter[str]()
        for index in case.waiters:
            sites[scene.shape(index).excerpt()] += scene.capture.threads[index].count
        site, most = sites.most_common(1)[0]
        says.append(
            f"{own} of {max(waiting, own)} waiting threads wait here; {most} of them in {site}"
        )
    for victim in victims:
        says.append(
            f"{scene.weight(victim.waiters)} threads wait in {victim.signature.id}, "
            "whose blocker waits here"
            if victim.signature.id not in case.signature.explains
            else f"{scene.weight(victim.waiters)} threads wait in {victim.signature.id}, "
            "which this makes longer"
        )
    for lock in scene.locks_of(case.waiters)[:3]:
        name = lock.symbol or f"{lock.address:#x}"
        where = f" ({lock.address:#x})" if lock.symbol else ""
        owner = f", owned by thread {lock.owner_tid}" if lock.owner_tid else ""
        if not owner and lock.readers:
            owner = f", held by {lock.readers} readers that it does not name"
        says.append(f"{lock.waiters} threads wait for the {lock.kind} {name}{where}{owner}")
        if not lock.stable:
            against.append(
                f"the owner of {name} changed while it was read: it is passed on quickly"
            )
    if case.blocker is not None:
        thread = case.blocker.thread
        says.append(f"{scene.say(thread)} {case.blocker.role}: it {scene.doing(thread)}")
        if case.blocker.via:
            says.append(
                "between the waiters and it: "
                + ", ".join(
                    f"{scene.say(i)} in {scene.shape(i).site()}" for i in case.blocker.via[:5]
                )
            )
        if case.blocker.source == "frames" and not case.blocker.chains:
            against.append("no lock word names the blocker: it is chosen by what it does")
        label = scene.capture.threads[case.blocker.thread].label
        if label is Label.RACED:
            against.append("the blocker ran while its stack was copied: its frames may be mixed")
    else:
        against.append(_nobody(scene, case))
    if case.root is not None and case.signature.id in scene.catalog.by_id[case.root].explains:
        against.append(f"{case.root} makes these waits longer, and is nearer to the cause")
    elif case.root is not None:
        against.append(f"its blocker waits itself: {case.root} is nearer to the cause")
    return says, against


def _nobody(scene: Scene, case: _Case) -> str:
    idle = scene.weight(
        i
        for i, shape in enumerate(scene.stacks.shapes)
        if scene.states[i] == IDLE and shape.idle is not None and shape.idle.session
    )
    if case.signature.idle_holder and idle:
        return (
            f"stacks do not show who holds it; it can be {_one_of(idle)}, with a transaction open"
        )
    return "no thread of this capture is seen holding it"


def _one_of(count: int) -> str:
    return "the one idle connection" if count == 1 else f"one of the {count} idle connections"


def order(found: Sequence[Finding], least: float) -> list[Finding]:
    """Put the verdict first: roots before their victims, then by confidence."""
    kept = [finding for finding in found if finding.confidence >= least]
    names = {finding.signature for finding in kept}
    kept.sort(
        key=lambda f: (f.victim_of is not None and f.victim_of in names, -f.confidence, -f.threads)
    )
    return kept

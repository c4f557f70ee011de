# SPDX-License-Identifier: Apache-2.0
"""One capture with all that is known of its threads: the input of every rule that finds stalls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from stallscope.analyzers import files
from stallscope.analyzers.analysis import Blocker, WaiterGroup
from stallscope.analyzers.catalog import Catalog, LettingGo, Signature
from stallscope.analyzers.graph import Graph
from stallscope.analyzers.persistence import Persistence
from stallscope.analyzers.pool import Pool, Sighting
from stallscope.analyzers.stacks import Shape, Stacks
from stallscope.analyzers.waits import DISK, IDLE, RUNNING, WAITING, WHOLE
from stallscope.model.capture import OF_TABLES, Capture, Lock, LockKind, Thread

__all__ = ["SAMPLE", "Candidate", "Scene", "named_as_process", "wait", "waiter_groups"]

EXCERPT = 3
"""A dump of so few threads is an excerpt: small counts are no evidence against a stall."""

ONE_OF = 4
"""A program with threads has one main thread among at least this many; processes have one each."""

MAIN = frozenset({"main", "mysqld_main"})

MAX_WAITER_GROUPS = 10
MAX_LOCKS = 10


BRIEF_NS = 10 * 10**6
"""Shorter waits are brief: a holder that loses its CPU for a turn blocks others as long."""

LASTING_PART = 0.5
"""Of the captures of a burst: a wait that so many show is a long one."""

RECENT_NS = 10 * 10**9
"""An earlier release says nothing about the current holder."""

SAMPLE = "sample"
"""The source of a blocker that a sample shows on a CPU."""


class Candidate(msgspec.Struct, frozen=True):
    """A thread that may be the blocker."""

    thread: int
    source: str
    """``futex`` and similar: a lock word names it; ``frames``: it is in a holder's frames."""
    role: str
    chains: bool
    """Whether its own blocker counts as the root of this stall."""
    share: float = 1.0
    """The share of the waiters that it blocks."""
    via: tuple[int, ...] = ()
    """How many owners are between the waiters and this root."""
    certain: bool = True
    """False: the only evidence is that no other thread is left."""
    release: int | None = None
    """Index into Capture.releases of the release that shows it."""
    unseen: str = ""
    """What the release cannot show, in a sentence."""
    sighting: Sighting | None = None
    """Where it was seen as the holder: in another capture of the burst, or in a sample."""


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
        cycles: Sequence[tuple[int, ...]],
        pool: Pool | None = None,
        persistence: Persistence | None = None,
    ) -> None:
        self.capture = capture
        self.catalog = catalog
        self.stacks = stacks
        self.states = states
        self.graph = graph
        self.cycles = cycles
        self.pool = pool
        """Of several captures: what all of them show of holders."""
        self.persistence = persistence
        """How long each thread is in its wait; None: there is one capture."""
        self._released: dict[tuple[str, int], bool] = {}

    def shape(self, thread: int) -> Shape:
        return self.stacks.shapes[thread]

    def weight(self, threads: Iterable[int]) -> int:
        """Return how many threads these represent."""
        return sum(self.capture.threads[index].count for index in threads)

    @cached_property
    def samples(self) -> int:
        """How many samples an aggregate adds up: each has the program's one main thread."""
        if all(thread.count == 1 for thread in self.capture.threads):
            return 1
        shapes = enumerate(self.stacks.shapes)
        mains = self.weight(index for index, shape in shapes if not MAIN.isdisjoint(shape.names))
        return max(1, mains) if mains * ONE_OF <= self.total else 1

    def at_once(self, threads: Iterable[int]) -> float:
        """Return how many threads these are at a moment: an aggregate has each of them often."""
        return self.weight(threads) / self.samples

    def is_brief(self, threads: Iterable[int]) -> bool:
        """Return whether the length of each of these waits is known, and none is long.

        0 of a source in whole seconds means unknown. A lock that was released after a long wait is
        better evidence than those that have waited for it since.
        """
        waiters = [self.capture.threads[index] for index in threads]
        longest = max((waiter.waited_ns or 0 for waiter in waiters), default=0)
        locks = {waiter.lock for waiter in waiters}
        return (
            0 < longest < BRIEF_NS
            and all(waiter.waited_ns is not None for waiter in waiters)
            and not any(
                release.lock is not None
                and release.lock in locks
                and (release.waited_ns or 0) >= BRIEF_NS
                for release in self.capture.releases
            )
        )

    @cached_property
    def total(self) -> int:
        return self.weight(range(len(self.capture.threads)))

    @cached_property
    def excerpt(self) -> bool:
        return self.total <= EXCERPT

    @cached_property
    def chosen(self) -> bool:
        """Return whether somebody has chosen the threads of the dump: a whole server has idle ones,
        and what this program captures is whole."""
        whole = WHOLE.intersection(self.states)
        return not whole and all(thread.label is None for thread in self.capture.threads)

    def oldest_statement_ns(self, indexes: Iterable[int]) -> int:
        """Return how long ago the oldest statement that one of these threads runs began, as the
        server says; 0: it says nothing."""
        threads = (self.capture.threads[index] for index in indexes)
        return max((thread.age_ns or 0 for thread in threads if not thread.rests), default=0)

    @cached_property
    def idle_connections(self) -> tuple[int, ...]:
        """Threads of connections that wait for their client, which can hold locks meanwhile."""
        return tuple(
            i
            for i, shape in enumerate(self.stacks.shapes)
            if self.states[i] == IDLE
            and shape.idle is not None
            and shape.idle.session
            and not self._has_no_transaction(i)
        )

    def _has_no_transaction(self, thread: int) -> bool:
        """Return whether its process's title says so: PostgreSQL keeps it up to date."""
        number = self.capture.threads[thread].process
        if not 0 <= number < len(self.capture.processes):
            return False
        title = " ".join(self.capture.processes[number].cmdline).rstrip()
        return title.startswith("postgres:") and title.endswith(" idle")

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
    def _fitting(self) -> dict[int, tuple[Signature, ...]]:
        """Thread → the signatures that it can belong to: running ones to ``busy`` ones only."""
        out: dict[int, tuple[Signature, ...]] = {}
        for index, state in enumerate(self.states):
            if state == WAITING:
                fits = self._fits(index)
            elif state == RUNNING:
                fits = tuple(s for s in self.shape(index).waiter_of if s.busy)
            else:
                continue
            if fits:
                out[index] = fits
        return out

    def _fits(self, thread: int) -> tuple[Signature, ...]:
        """Return what a waiting thread can belong to: by its lock's name, its frames, its place."""
        lock = self.lock_of(thread)
        claims: tuple[Signature, ...] = ()
        # The name of a row's or table's lock is its users' own: it can be that of any mutex.
        if lock is not None and lock.symbol and lock.kind not in OF_TABLES:
            claims = self.catalog.claims(lock.symbol)
        claims = tuple(s for s in claims if self._usable(s, thread))
        if len(claims) == 1 or (claims and claims[0].holder_use == "required"):
            return claims[:1]
        frames = tuple(s for s in self.shape(thread).waiter_of if self._usable(s, thread))
        both = tuple(s for s in claims if s in frames)
        if both or frames or claims:
            return both or frames or claims[:1]
        item = self.capture.threads[thread]
        named = self.catalog.by_server_text(lock, item.activity)
        if named:
            return tuple(s for s in named if self._usable(s, thread))[:1]
        source = next((f.source for f in item.frames if f.source), None)
        if source is None or lock is None:
            return ()
        waited = item.waited_ns or 0
        for signature in self.catalog.at_site(lock, source):
            if self._usable(signature, thread) and waited >= signature.waited_s * 10**9:
                return (signature,)
        return ()

    @cached_property
    def support(self) -> dict[str, int]:
        """Signature id → how many threads can be nothing else: they decide for those that can."""
        out: dict[str, int] = {}
        for index, fits in self._fitting.items():
            if len(fits) == 1:
                out[fits[0].id] = out.get(fits[0].id, 0) + self.capture.threads[index].count
        return out

    @cached_property
    def assigned(self) -> dict[int, Signature]:
        """Waiting thread → the signature that its wait belongs to.

        One whose holder is seen comes before those that need none; then what others decide.
        """

        def rank(signature: Signature) -> tuple[bool, bool, int]:
            seen = signature.holder_use == "required"
            return seen, self.support.get(signature.id, 0) > 0, -signature.precedence

        return {index: max(fits, key=rank) for index, fits in self._fitting.items()}

    def rivals(self, threads: Iterable[int], signature: Signature) -> tuple[str, ...]:
        """Return the signatures that fit some of these waiters as well, nothing deciding."""
        if self.support.get(signature.id) or signature.holder_use == "required":
            return ()
        return tuple(
            sorted({s.id for i in threads for s in self._fitting[i] if s is not signature})
        )

    def _usable(self, signature: Signature, thread: int) -> bool:
        if signature.holder_use != "required" and signature.id not in self.shape(thread).vague:
            return True
        if any(holder != thread for holder in self.holders.get(signature.id, ())):
            return True
        if self.pool is not None and self.pool.covers(signature.id):
            return True
        lock = self.capture.threads[thread].lock
        return lock is not None and self.released_as(signature, lock)

    @cached_property
    def releases(self) -> dict[int, tuple[int, ...]]:
        """Lock → its recent releases, the latest first: indexes into Capture.releases."""
        out: dict[int, list[int]] = {}
        for number, release in enumerate(self.capture.releases):
            if release.lock is None or self.capture.lock_at(release.lock) is None:
                continue
            if release.ago_ns <= RECENT_NS:
                out.setdefault(release.lock, []).append(number)
        return {lock: tuple(numbers) for lock, numbers in out.items()}

    def letting_go(self, signature: Signature, number: int) -> LettingGo | None:
        """Return the entry of the signature that a release fits."""
        release = self.capture.releases[number]
        shape = self.stacks.releases[number]
        for entry in signature.releases:
            if shape.fits(entry.patterns):
                thread = self.thread_of(release.process, release.tid)
                if not entry.then or (thread is not None and self.shape(thread).fits(entry.then)):
                    return entry
        return None

    def released_as(self, signature: Signature, lock: int) -> bool:
        """Return whether at least half of a lock's releases are those of the signature."""
        if not signature.releases:
            return False
        key = signature.id, lock
        if key not in self._released:
            counts = {True: 0, False: 0}
            for number in self.releases.get(lock, ()):
                fits = self.letting_go(signature, number) is not None
                counts[fits] += self.capture.releases[number].count
            self._released[key] = counts[True] > 0 and counts[True] >= counts[False]
        return self._released[key]

    @cached_property
    def _by_tid(self) -> dict[tuple[int, int], int]:
        return {(t.process, t.tid): i for i, t in enumerate(self.capture.threads) if t.tid}

    def thread_of(self, process: int, tid: int) -> int | None:
        """Return the index of a thread, None where it has ended."""
        return self._by_tid.get((process, tid))

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

    @cached_property
    def syncing(self) -> frozenset[int]:
        """Threads inside fsync and similar calls."""
        return frozenset(
            index
            for index, shape in enumerate(self.stacks.shapes)
            if shape.wait is not None
            and shape.wait.kind == "sync"
            and self.states[index] == WAITING
        )

    def has_holder(self, signature: str) -> bool:
        """Return whether a thread of any capture of the burst is in a holder's frames."""
        return signature in self.holders or (
            self.pool is not None and signature in self.pool.sightings
        )

    @cached_property
    def held_up(self) -> dict[str, tuple[int, ...]]:
        """Signature id → threads inside the device call that its holders make: a slow device holds
        them up, whether or not others wait behind them."""
        out: dict[str, list[int]] = {}
        for index, shape in enumerate(self.stacks.shapes):
            wait = shape.wait
            if not shape.holder_of or wait is None or wait.kind not in DISK:
                continue
            if self.states[index] != WAITING or index in self.assigned:
                continue
            for name, numbers in shape.holder_of.items():
                signature = self.catalog.by_id[name]
                if signature.device and any(not signature.holders[n].unique for n in numbers):
                    out.setdefault(name, []).append(index)
        return {name: tuple(threads) for name, threads in out.items()}

    def lock_of(self, thread: int) -> Lock | None:
        return self.capture.lock_at(self.capture.threads[thread].lock)

    def queues(self, threads: Iterable[int]) -> dict[int, int]:
        """Return lock → how many of the threads wait for it, most waiters first."""
        counts: Counter[int] = Counter()
        for index in threads:
            number = self.capture.threads[index].lock
            if number is not None and 0 <= number < len(self.capture.locks):
                counts[number] += self.capture.threads[index].count
        return dict(counts.most_common())

    def locks_of(self, threads: Iterable[int]) -> tuple[Lock, ...]:
        """Return the locks that the threads wait for, most waiters first, counted again.

        A condition variable that one thread alone uses shows nothing and is left out.
        """
        out = []
        for number, count in self.queues(threads).items():
            lock = self.capture.locks[number]
            if count > 1 or lock.symbol or lock.owner_tid or lock.kind is not LockKind.COND:
                out.append(msgspec.structs.replace(lock, waiters=count))
            if len(out) == MAX_LOCKS:
                break
        return tuple(out)

    def say(self, thread: int) -> str:
        """Name a thread in a sentence."""
        item = self.capture.threads[thread]
        name = f" ({item.name})" if item.name and not named_as_process(self.capture, item) else ""
        return f"thread {item.tid}{name}" if item.tid else "a thread without a number"

    def blocker(self, candidate: Candidate) -> Blocker:
        item = self.capture.threads[candidate.thread]
        shape = self.shape(candidate.thread)
        if candidate.sighting is not None:
            return self._seen(item, candidate, candidate.sighting)
        if candidate.release is not None:
            shape = self.stacks.releases[candidate.release]
        return Blocker(
            tid=item.tid,
            name=item.name,
            frames=shape.frames,
            state=self.states[candidate.thread],
            source=candidate.source,
            certain=candidate.certain,
            sql=item.query,
            thread=candidate.thread,
        )

    def _seen(self, item: Thread, candidate: Candidate, sighting: Sighting) -> Blocker:
        """Return a blocker as another capture or a sample shows it."""
        return Blocker(
            tid=item.tid,
            name=item.name,
            frames=sighting.shape.frames,
            state=sighting.state,
            source=SAMPLE if sighting.moment is None else candidate.source,
            certain=candidate.certain,
            sql=item.query,
            thread=candidate.thread,
        )

    def lasts(self, thread: int) -> bool:
        """Return whether half of the captures of the burst, in a row, show this very wait."""
        if self.persistence is None or self.pool is None:
            return False
        return self.persistence.runs[thread] >= LASTING_PART * self.pool.captures

    def waited_ns(self, thread: int) -> int:
        """Return for how long its wait is known to have lasted; 0: not known."""
        reported = self.capture.threads[thread].waited_ns or 0
        if self.persistence is None:
            return reported
        return max(reported, self.persistence.lasted_ns[thread])

    def significant(self, thread: int) -> tuple[str, ...]:
        """Return the frames that show what a thread does, else the server's text about it."""
        shape = self.shape(thread)
        if shape.frames:
            return shape.significant()
        activity = self.capture.threads[thread].activity
        return (activity,) if activity else ()

    def place(self, thread: int) -> str:
        """Return where a thread is."""
        return " < ".join(self.significant(thread)) or "?"

    def doing(self, thread: int) -> str:
        """Return what a thread does, for a sentence."""
        shape = self.shape(thread)
        item = self.capture.threads[thread]
        if self.states[thread] == IDLE:
            return f"is idle: {shape.idle.what}" if shape.idle else "is idle"
        if not shape.frames and not item.activity:
            where = "works" if self.states[thread] == RUNNING else "waits"
            return f"{where} where it was not seen"
        if self.states[thread] == RUNNING:
            where = "is on a CPU" if item.on_cpu else "is running"
        elif files.is_frozen(item):
            where = "waits until its file system is thawed,"
        elif shape.wait is not None and shape.wait.kind in DISK:
            where = f"waits for the disk ({shape.wait.frame})"
        else:
            where = "waits"
        return f"{where} in {self.place(thread)}"


def named_as_process(capture: Capture, thread: Thread) -> bool:
    """Return whether a thread's name is the program's: then it shows nothing."""
    if not 0 <= thread.process < len(capture.processes):
        return False
    return thread.name == capture.processes[thread.process].comm


def wait(count: int) -> str:
    """Return ``1 thread waits`` or ``2 threads wait``, and so on."""
    return "1 thread waits" if count == 1 else f"{count} threads wait"


def waiter_groups(scene: Scene, members: Iterable[int]) -> tuple[WaiterGroup, ...]:
    """Group waiting threads by stack, largest first."""
    counts: Counter[tuple[str, ...]] = Counter()
    for index in members:
        counts[scene.shape(index).frames] += scene.capture.threads[index].count
    return tuple(
        WaiterGroup(count=count, frames=frames)
        for frames, count in counts.most_common(MAX_WAITER_GROUPS)
    )

# SPDX-License-Identifier: Apache-2.0
"""Who waits on what, as a forest and as text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis, Blocker, Finding
from stallscope.analyzers.waittree import Holder, Queue, forest
from stallscope.model.capture import Capture, Frame, Lock, LockKind, Thread
from stallscope.reporters import waittree
from tests.support.chance import SEED


def capture(owners: Sequence[int | None], *, count: int = 1) -> Capture:
    """Return threads 1 to n; ``owners[i]`` holds the mutex that thread i+1 waits for."""
    wanted = sorted({owner for owner in owners if owner is not None})
    locks = tuple(
        Lock(0, 0x1000 + owner, LockKind.MUTEX, owner_tid=owner, symbol=f"lock_of_{owner}")
        for owner in wanted
    )
    waiting = ("__lll_lock_wait", "pthread_mutex_lock", "work")
    threads = tuple(
        Thread(
            tid=i + 1,
            frames=tuple(Frame(name) for name in (waiting if owner else ("work", "main"))),
            state="S" if owner else "R",
            lock=wanted.index(owner) if owner else None,
            count=count,
        )
        for i, owner in enumerate(owners)
    )
    return Capture(backend="bpf", processes=(), threads=threads, locks=locks)


def text(analysis: Analysis, width: int = 80) -> list[str]:
    return [line.text for line in waittree.render(analysis, width)]


def weight(roots: Sequence[Holder]) -> int:
    return sum(root.behind for root in roots)


def threads_in(roots: Sequence[Holder]) -> list[int]:
    """Return each thread as often as it is in the forest."""
    found: list[int] = []

    def of_queue(queue: Queue) -> None:
        for place in queue.places:
            found.extend(place.threads)
        for holder in queue.holders:
            of_holder(holder)

    def of_holder(holder: Holder) -> None:
        if holder.thread is not None and not holder.closes:
            found.append(holder.thread)
        for queue in holder.queues:
            of_queue(queue)

    for root in roots:
        of_holder(root)
    return found


def test_an_owner_that_waits_for_its_own_lock_came_later(signatures: catalog.Catalog) -> None:
    """It waited when its stack was copied, and has got the lock since: it blocked nobody."""
    seen = capture([None, 2, 2, 2])
    moved = tuple(msgspec.structs.replace(lock, stable=False) for lock in seen.locks)
    analysis = engine.analyze(msgspec.structs.replace(seen, locks=moved), signatures)
    (root,) = forest(analysis)
    assert root.thread is None
    assert [(queue.lock, queue.count, queue.holders) for queue in root.queues] == [(0, 3, ())]
    assert "held by thread 2, 3 wait [futex]; it changed while it was read" in "\n".join(
        text(analysis, 120)
    )


def test_a_chain_nests(signatures: catalog.Catalog) -> None:
    analysis = engine.analyze(capture([None, 1, 2, 2]), signatures)
    (root,) = forest(analysis)
    assert (root.thread, root.behind) == (0, 3)
    assert text(analysis) == [
        "  thread 1, running (the blocker)",
        "  └─ lock_of_1 (mutex at 0x1001): 1 waits [futex]",
        "     └─ thread 2, waiting, in work",
        "        └─ lock_of_2 (mutex at 0x1002): 2 wait [futex]",
        "           └─ 2 in work",
    ]


def test_a_ring_says_where_it_closes(signatures: catalog.Catalog) -> None:
    analysis = engine.analyze(capture([2, 1, 1]), signatures)
    (root,) = forest(analysis)
    assert root.cycle == (0, 1)
    assert text(analysis) == [
        "  deadlock cycle, each waits for the next: 1 -> 2 -> 1",
        "  thread 1, waiting (the blocker)",
        "  └─ lock_of_1 (mutex at 0x1001): 2 wait [futex]",
        "     ├─ thread 3, in work",
        "     └─ thread 2, waiting, in work",
        "        └─ lock_of_2 (mutex at 0x1002): 1 waits [futex]",
        "           └─ thread 1, above: the cycle closes",
    ]


def test_a_thread_that_waits_for_itself(signatures: catalog.Catalog) -> None:
    lines = text(engine.analyze(capture([1]), signatures))
    assert lines[0] == "  deadlock cycle, each waits for the next: 1 -> 1"
    assert lines[-1].endswith("thread 1, above: the cycle closes")


def test_two_thousand_victims_are_few_lines(signatures: catalog.Catalog) -> None:
    analysis = engine.analyze(capture([None, *[1] * 2000]), signatures)
    lines = text(analysis)
    assert len(lines) <= 4
    assert "2000 wait" in lines[1]
    long = engine.analyze(capture([None, *range(1, 2000)]), signatures)
    lines = text(long)
    assert len(lines) < 25
    assert lines[-1].strip() == "└─ … 1995 threads behind it"
    assert max(map(len, lines)) <= 80


def test_holders_without_a_name(signatures: catalog.Catalog) -> None:
    base = capture([None, 1, 1])
    free = msgspec.structs.replace(base.locks[0], owner_tid=None)
    analysis = engine.analyze(msgspec.structs.replace(base, locks=(free,)), signatures)
    assert text(analysis)[0] == (
        "  lock_of_1 (mutex at 0x1001): free when it was read, 2 wait [futex]"
    )


def test_a_finding_names_holders_of_locks_without_a_lock_word() -> None:
    """A chain of findings: thread 1 blocks thread 2, and thread 2 the others, as their frames
    show."""
    base = capture([None, None, None, None])

    def finding(name: str, blocker: int, members: tuple[int, ...], root: str | None) -> Finding:
        return Finding(
            signature=name,
            title=name,
            confidence=0.9,
            threads=len(members),
            blocker=Blocker(blocker + 1, "", (), source="frames", thread=blocker, certain=False),
            waiters=(),
            locks=(),
            chain=(),
            evidence=(),
            members=members,
            victim_of=root,
        )

    analysis = Analysis(
        capture=base,
        findings=(finding("root", 0, (1, 2, 3), None), finding("victim", 1, (2, 3), "root")),
        groups=(),
        states=("idle", "waiting", "waiting", "waiting"),
        places=((), ("a",), ("b",), ("b",)),
    )
    assert text(analysis) == [
        "  likely thread 1, idle (the blocker)",
        "  └─ root: 1 waits [frames]",
        "     └─ likely thread 2, waiting, in a",
        "        └─ victim: 2 wait [frames]",
        "           └─ 2 in b",
    ]


def test_untrusted_text_is_inert(signatures: catalog.Catalog) -> None:
    base = capture([None, 1])
    evil = "[red]\x1b[2J\u202e\nx"
    threads = tuple(
        msgspec.structs.replace(t, name=evil, query=evil * 50, user=evil) for t in base.threads
    )
    locks = tuple(msgspec.structs.replace(lock, symbol=evil) for lock in base.locks)
    report = msgspec.structs.replace(base, threads=threads, locks=locks)
    for line in text(engine.analyze(report, signatures), 60):
        assert line.isprintable()
        assert len(line) <= 60


def test_every_waiter_is_in_it_once(signatures: catalog.Catalog) -> None:
    rng = random.Random(SEED)
    for _ in range(60):
        size = rng.randrange(1, 40)
        owners = [rng.choice([None, rng.randrange(1, size + 1)]) for _ in range(size)]
        analysis = engine.analyze(capture(owners), signatures)
        found = threads_in(forest(analysis))
        assert len(found) == len(set(found))
        waiting = {i for i, owner in enumerate(owners) if owner is not None}
        assert waiting <= set(found)
        assert all(len(line) <= 80 for line in text(analysis))

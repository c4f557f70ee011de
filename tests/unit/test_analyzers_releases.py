# SPDX-License-Identifier: Apache-2.0

"""Captures of the in-process library: who works is not seen, and who let a lock go is."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis, Finding
from stallscope.model.capture import LockKind, Release
from stallscope.reporters import json as json_report
from stallscope.reporters import terminal
from tests.unit.scenes import Scenery, blocker_of

SQL = "mysql_execute_command, mysql_parse, dispatch_command, do_command, handle_one_connection"
UPDATE = f"row_search_for_mysql, ha_innobase::index_read, mysql_update, {SQL}"
EVENT = "pthread_cond_wait, os_event_wait_low"
LATCH = f"{EVENT}, sync_array_wait_event, mutex_spin_wait"
WANTS = f"{LATCH}, lock_clust_rec_read_check_and_lock, sel_set_rec_lock, {UPDATE}"
ENDS = f"{LATCH}, srv_suspend_mysql_thread, row_mysql_handle_errors, {UPDATE}"
QUEUES = f"{EVENT}, srv_suspend_mysql_thread, row_mysql_handle_errors, {UPDATE}"
WAKES = "pthread_cond_broadcast, os_event_set, mutex_signal_object"
SEARCHED = f"{WAKES}, lock_clust_rec_read_check_and_lock, sel_set_rec_lock, {UPDATE}"
COMMITTED = f"{WAKES}, trx_commit_off_kernel, trx_commit_for_mysql, innobase_commit, {SQL}"
OPENS = f"pthread_mutex_lock, open_table, open_tables, {SQL}"
OPENED = f"pthread_mutex_unlock, open_table_def, get_table_share, open_table, open_tables, {SQL}"


class Storm:
    """Threads that update one row of MySQL 5.5, and want kernel_mutex, as the agent sees it."""

    def __init__(self) -> None:
        self.scenery = Scenery(cpus=2)
        self.mutex = self.scenery.lock(kind=LockKind.COND)
        self.scenery.unseen(times=20)
        self.scenery.unseen(times=2, state="R")
        self.searchers = self.scenery.add(ENDS, times=8, lock=self.mutex)
        self.scenery.add(WANTS, times=12, lock=self.mutex)
        self.queued: list[int] = []
        for _ in range(60):  # each has an event of its own
            own = self.scenery.lock(kind=LockKind.COND)
            self.queued += self.scenery.add(QUEUES, lock=own)

    def judge(self, signatures: catalog.Catalog) -> Analysis:
        return engine.analyze(self.scenery.capture("inproc"), signatures)

    def verdict(self, signatures: catalog.Catalog) -> Finding:
        return self.judge(signatures).findings[0]


def test_a_search_for_deadlocks_is_known_by_its_release(signatures: catalog.Catalog) -> None:
    storm = Storm()
    storm.scenery.release(SEARCHED, storm.searchers[0], storm.mutex)
    storm.scenery.release(SEARCHED, storm.queued[0], storm.mutex, ago_ms=60)
    storm.scenery.release(COMMITTED, 1, storm.mutex, ago_ms=70)
    found = storm.verdict(signatures)
    assert found.signature == "innodb-deadlock-check"
    assert [link.signature for link in found.chain] == ["innodb-deadlock-check", "innodb-row-lock"]
    assert found.threads >= 75
    assert blocker_of(found).tid == storm.searchers[0]
    assert blocker_of(found).source == "release"
    assert not blocker_of(found).certain
    assert "lock_clust_rec_read_check_and_lock" in blocker_of(found).frames
    assert any("released by thread" in line and "12 ms before" in line for line in found.evidence)
    assert any("the search itself is not a wait" in line for line in found.against)


def test_a_search_in_later_versions(signatures: catalog.Catalog) -> None:
    """MySQL 5.7: lock_sys->mutex is a TTASEventMutex, and row waits are of lock0wait.cc."""
    event = "pthread_cond_wait, os_event::wait_low, os_event_wait_low"
    latch = f"{event}, sync_array_wait_event, TTASEventMutex::wait, PolicyMutex::enter"
    asks = f"lock_clust_rec_read_check_and_lock, sel_set_rec_lock, row_search_mvcc, {SQL}"
    queues = f"lock_wait_suspend_thread, row_mysql_handle_errors, row_search_mvcc, {SQL}"
    wakes = "pthread_cond_broadcast, os_event::broadcast, os_event::set, os_event_set"
    scenery = Scenery()
    mutex = scenery.lock(kind=LockKind.COND)
    scenery.add(f"{latch}, {asks}", times=12, lock=mutex)
    (searcher,) = scenery.add(f"{event}, {queues}", lock=scenery.lock(kind=LockKind.COND))
    out = "TTASEventMutex::signal, TTASEventMutex::exit, PolicyMutex::exit"
    scenery.release(f"{wakes}, {out}, {asks}", searcher, mutex)
    found = engine.analyze(scenery.capture("inproc"), signatures).findings[0]
    assert found.signature == "innodb-deadlock-check"
    assert blocker_of(found).tid == searcher


def test_a_search_that_is_seen_is_surer(signatures: catalog.Catalog) -> None:
    storm = Storm()
    storm.scenery.release(SEARCHED, storm.searchers[0], storm.mutex)
    inferred = storm.verdict(signatures)
    search = "lock_deadlock_recursive, lock_deadlock_occurs, lock_rec_enqueue_waiting"
    storm.scenery.add(f"{search}, {UPDATE}", tid=7, state="R", on_cpu=True)
    seen = storm.verdict(signatures)
    assert seen.signature == inferred.signature == "innodb-deadlock-check"
    assert blocker_of(seen).tid == 7
    assert (inferred.signs.blocker, seen.signs.blocker) == (0.0, 1.0)
    assert seen.confidence >= inferred.confidence


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda storm: None, id="none"),
        pytest.param(
            lambda storm: storm.scenery.release(COMMITTED, storm.queued[0], storm.mutex),
            id="elsewhere",
        ),
        pytest.param(
            lambda storm: storm.scenery.release(SEARCHED, storm.queued[0], None), id="another-lock"
        ),
        pytest.param(
            lambda storm: storm.scenery.release(
                SEARCHED, storm.queued[0], storm.mutex, ago_ms=60_000
            ),
            id="long-ago",
        ),
        # Who got the row at once has not searched.
        pytest.param(
            lambda storm: storm.scenery.release(
                SEARCHED, storm.scenery.unseen(state="R")[0], storm.mutex
            ),
            id="had-no-row-to-wait-for",
        ),
        pytest.param(
            lambda storm: (
                storm.scenery.release(SEARCHED, storm.queued[0], storm.mutex),
                storm.scenery.release(COMMITTED, 1, storm.mutex, count=3),
            ),
            id="few-of-many",
        ),
    ],
)
def test_what_is_no_trace_of_a_search(spoil: object, signatures: catalog.Catalog) -> None:
    storm = Storm()
    assert callable(spoil)
    spoil(storm)
    assert "innodb-deadlock-check" not in {f.signature for f in storm.judge(signatures).findings}


def test_a_queue_for_a_row_that_nobody_searches_is_one(signatures: catalog.Catalog) -> None:
    """Each waiter has searched once, when it came: nobody waits for the mutex any more."""
    scenery = Scenery()
    scenery.unseen(times=5)
    queued = [
        tid for _ in range(30) for tid in scenery.add(QUEUES, lock=scenery.lock(kind=LockKind.COND))
    ]
    scenery.release(SEARCHED, queued[3], None)
    found = engine.analyze(scenery.capture("inproc"), signatures).findings
    assert [f.signature for f in found] == ["innodb-row-lock"]
    assert any("5 unseen threads" in line for line in found[0].against)


def test_few_waiters_make_no_sure_finding_of_a_release(signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    mutex = scenery.lock(kind=LockKind.COND)
    first, *_ = scenery.add(ENDS, times=2, lock=mutex)
    scenery.unseen(times=6, state="R")
    scenery.release(SEARCHED, first, mutex)
    found = engine.analyze(scenery.capture("inproc"), signatures).findings
    assert [f for f in found if f.confidence >= 0.5] == []


def test_owner_without_frames_is_the_blocker(signatures: catalog.Catalog) -> None:
    """It reads a file: no wait that the agent watches. The release before shows what owners do."""
    scenery = Scenery()
    lock = scenery.lock(owner=7, symbol="LOCK_open")
    scenery.unseen(tid=7)
    scenery.unseen(times=4)
    waiting = scenery.add(OPENS, times=15, lock=lock)
    scenery.release(OPENED, waiting[0], lock)
    analysis = engine.analyze(scenery.capture("inproc"), signatures)
    found = analysis.findings[0]
    assert found.signature == "table-open-lock"
    assert (blocker_of(found).tid, blocker_of(found).state) == (7, "waiting")
    assert any("waits where it was not seen" in line for line in found.evidence)
    assert any("open_table_def" in line for line in found.evidence)
    assert not any("mixed" in line for line in found.against)


def test_release_in_the_frames_of_a_holder_makes_it_likely(signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    lock = scenery.lock(symbol="LOCK_open")
    waiting = scenery.add(OPENS, times=15, lock=lock)
    scenery.release(OPENED, waiting[0], lock)
    found = engine.analyze(scenery.capture("inproc"), signatures).findings[0]
    assert found.signature == "table-open-lock"
    assert (blocker_of(found).tid, blocker_of(found).source) == (waiting[0], "release")
    assert not blocker_of(found).certain


def test_unseen_threads_are_no_stall_and_are_counted(signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    scenery.unseen(times=200)
    scenery.unseen(times=3, state="R")
    analysis = engine.analyze(scenery.capture("inproc"), signatures)
    assert analysis.findings == ()
    threads = json_report.render(analysis)["threads"]
    assert (threads["total"], threads["idle"], threads["unseen"]) == (203, 200, 200)
    assert (threads["running"], threads["waiting"]) == (3, 0)
    text = "\n".join(line.text for line in terminal.render(analysis, terminal.Options()))
    assert "200 of them sleep in calls that the library does not watch" in " ".join(text.split())


def test_releases_are_shown(signatures: catalog.Catalog) -> None:
    storm = Storm()
    for number in range(5):
        storm.scenery.release(SEARCHED, storm.queued[number], storm.mutex, count=number + 1)
    analysis = storm.judge(signatures)
    shown = json_report.render(analysis)["releases"]
    assert len(shown) == 5
    assert shown[1]["tid"] == storm.queued[1]
    assert shown[1]["count"] == 2
    assert shown[1]["waited_ms"] == 40.0
    assert shown[1]["frames"][0] == "pthread_cond_broadcast"
    text = "\n".join(line.text for line in terminal.render(analysis, terminal.Options(width=200)))
    line = f'by thread {storm.queued[1]} "t" 12 ms before, after a wait of 40 ms, 2 times:'
    assert line in text
    assert "… and 2 more" in text


@pytest.mark.parametrize("many", [WANTS, f"pthread_mutex_lock, a_place_nobody_knows, {SQL}"])
def test_waits_that_have_just_begun_are_a_moment(many: str, signatures: catalog.Catalog) -> None:
    """How long each has waited is written in a ring; contention that passes is no stall."""
    scenery = Scenery(cpus=2)
    mutex = scenery.lock(kind=LockKind.COND)
    scenery.add(many, times=12, lock=mutex)
    capture = scenery.capture("inproc")

    def judged(*waited_ms: int, releases: tuple[Release, ...] = ()) -> Finding:
        lengths = itertools.cycle(waited_ms)
        threads = tuple(
            msgspec.structs.replace(thread, waited_ns=next(lengths) * 10**6)
            for thread in capture.threads
        )
        changed = msgspec.structs.replace(capture, threads=threads, releases=releases)
        options = engine.Options(min_confidence=0.0)
        return engine.analyze(changed, signatures, options=options).findings[0]

    brief, lasting, whole_seconds = judged(1, 9), judged(1, 10), judged(0)
    assert brief.confidence < 0.4 < lasting.confidence == whole_seconds.confidence
    scenery.release(COMMITTED, 1, mutex)
    assert judged(1, 9, releases=scenery.capture().releases).confidence >= lasting.confidence


def test_that_waits_have_just_begun_is_said(signatures: catalog.Catalog) -> None:
    scenery = Scenery(cpus=2)
    scenery.add(WANTS, times=12, lock=scenery.lock(kind=LockKind.COND))
    capture = scenery.capture("inproc")
    threads = tuple(msgspec.structs.replace(one, waited_ns=10**6) for one in capture.threads)
    changed = msgspec.structs.replace(capture, threads=threads)
    options = engine.Options(min_confidence=0.0)
    against = engine.analyze(changed, signatures, options=options).findings[0].against
    assert "none of these waits had lasted 10 ms at the capture" in against

# SPDX-License-Identifier: Apache-2.0
"""One verdict from a burst: causes that few captures show, and waits that are none of a stall."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis
from stallscope.model.capture import Capture, Label, LockKind, Sample
from tests.unit.scenes import COND, FUTEX, IDLE_SESSION, SESSION, Scenery, blocker_of, frames

__all__: list[str] = []

INTERVAL_NS = 30 * 10**6
PERIOD_NS = 10**6
CAPTURES = 20

SUSPENDED = (
    f"{COND}, os_event_wait_low, srv_suspend_mysql_thread, row_mysql_handle_errors, {SESSION}"
)
LATCH = f"{COND}, os_event_wait_low, sync_array_wait_event, mutex_spin_wait, trx_start, {SESSION}"
SEARCH = f"lock_deadlock_recursive, lock_deadlock_occurs, lock_rec_enqueue_waiting, {SESSION}"
WORK = f"JOIN::exec, {SESSION}"
SYNC = f"fsync, os_file_flush_func, fil_flush, log_write_up_to, trx_commit_for_mysql, {SESSION}"
MDL = f"{COND}, MDL_wait::timed_wait, MDL_context::acquire_lock"
METADATA = f"{MDL}, open_table_get_mdl_lock, open_table, open_tables, {SESSION}"


def burst(
    sceneries: Sequence[Scenery], samples: Iterable[tuple[str, int]] = (), *, moving: bool = True
) -> Capture:
    """Make a burst; ``moving``: each thread ran between any two captures.

    ``samples``: stacks that ran in each interval, and how often of thirty.
    """
    ran = tuple(
        Sample(process=0, tid=900 + n, frames=frames(stack), label=Label.RUNNING, count=count)
        for n, (stack, count) in enumerate(samples)
    )
    moments = []
    for number, scenery in enumerate(sceneries):
        capture = scenery.capture()
        threads = tuple(
            msgspec.structs.replace(thread, switches=number if moving else 7)
            for thread in capture.threads
        )
        moments.append(
            msgspec.structs.replace(
                capture,
                threads=threads,
                moment=number,
                time_ns=number * INTERVAL_NS + 1,
                host={"cpus": 2},
                samples=ran if number else (),
                sample_period_ns=PERIOD_NS if ran and number else 0,
                sample_window_ns=INTERVAL_NS if ran and number else 0,
                sample_cpus=2,
            )
        )
    return msgspec.structs.replace(moments[0], later=tuple(moments[1:]))


def victims(waiters: int = 40) -> Scenery:
    scenery = Scenery()
    scenery.add(SUSPENDED, times=waiters)
    scenery.add(LATCH, times=3)
    # Whom the samples show is there, and waits now.
    for number in range(4):
        scenery.add(SUSPENDED, tid=900 + number)
    return scenery


def verdict(analysis: Analysis) -> tuple[str | None, float]:
    return (
        (analysis.findings[0].signature, analysis.findings[0].confidence)
        if analysis.findings
        else (None, 0.0)
    )


def test_one_capture_with_the_cause_beats_those_with_its_victims(
    signatures: catalog.Catalog,
) -> None:
    shown = victims()
    shown.add(SEARCH, tid=500, state="R", on_cpu=True)
    analysis = engine.analyze(burst([*[victims() for _ in range(CAPTURES - 1)], shown]), signatures)
    signature, confidence = verdict(analysis)
    assert signature == "innodb-deadlock-check"
    assert confidence >= 0.5
    first = analysis.findings[0]
    assert first.seen is not None
    assert first.seen.of == CAPTURES
    assert first.seen.holders == 1
    assert first.seen.profile == ()  # one sighting shows who, and not where the time goes
    assert "lock_deadlock_recursive" in blocker_of(first).frames
    assert first.threads >= 40
    alone = engine.analyze(burst([victims() for _ in range(CAPTURES)]), signatures)
    assert verdict(alone)[0] == "innodb-row-lock"


def test_a_cause_that_only_samples_show_is_named_with_its_share(
    signatures: catalog.Catalog,
) -> None:
    capture = burst([victims() for _ in range(CAPTURES)], [(SEARCH, 12), (WORK, 18)])
    analysis = engine.analyze(capture, signatures)
    assert verdict(analysis)[0] == "innodb-deadlock-check"
    first = analysis.findings[0]
    assert first.seen is not None
    assert first.seen.cpu == pytest.approx(0.4)
    assert first.seen.profile[0][0].startswith("lock_deadlock_recursive")
    assert (blocker_of(first).tid, blocker_of(first).source) == (900, "sample")
    assert analysis.cpu is not None
    assert analysis.cpu.busy == pytest.approx(1.0)
    shares = {share.signature: share.share for share in analysis.cpu.shares}
    assert shares["innodb-deadlock-check"] == pytest.approx(0.4)


def test_waits_that_last_are_not_of_a_cause_that_is_rarely_there(
    signatures: catalog.Catalog,
) -> None:
    """An idle transaction has the row; one newcomer was checked for deadlocks."""
    sceneries = []
    for number in range(CAPTURES):
        scenery = Scenery()
        scenery.add(SUSPENDED, times=40)
        scenery.add(IDLE_SESSION)
        if number == 3:
            scenery.add(SEARCH, tid=500, state="R", on_cpu=True)
        sceneries.append(scenery)
    analysis = engine.analyze(burst(sceneries, moving=False), signatures)
    assert verdict(analysis)[0] == "innodb-row-lock"
    first = analysis.findings[0]
    assert first.seen is not None
    assert first.seen.lasting == 40


def test_two_waits_that_last_are_more_than_a_hint(signatures: catalog.Catalog) -> None:
    def scenery() -> Scenery:
        one = Scenery()
        one.add(METADATA, times=2)
        one.add(IDLE_SESSION, times=5)
        return one

    lasting = engine.analyze(burst([scenery() for _ in range(CAPTURES)], moving=False), signatures)
    assert verdict(lasting)[0] == "metadata-lock"
    assert verdict(lasting)[1] >= 0.5
    first = lasting.findings[0]
    assert first.seen is not None
    assert (first.seen.captures, first.seen.lasting) == (CAPTURES, 2)
    moving = engine.analyze(burst([scenery() for _ in range(CAPTURES)]), signatures)
    assert verdict(moving)[1] < 0.5


def test_short_syncs_of_a_busy_server_are_no_stall(signatures: catalog.Catalog) -> None:
    """Each commit waits for its sync at each moment; none does for long."""

    def scenery() -> Scenery:
        one = Scenery()
        one.add(SYNC, tid=100, state="D")
        one.add(
            f"{COND}, os_event_wait_low, log_write_up_to, trx_commit_for_mysql, {SESSION}", times=12
        )
        return one

    short = engine.analyze(burst([scenery() for _ in range(CAPTURES)]), signatures)
    assert verdict(short)[1] < 0.5
    lasting = engine.analyze(burst([scenery() for _ in range(CAPTURES)], moving=False), signatures)
    assert verdict(lasting)[0] == "innodb-redo-sync"
    assert verdict(lasting)[1] >= 0.5


def test_what_few_captures_show_is_a_moment(signatures: catalog.Catalog) -> None:
    busy = Scenery()
    busy.add(WORK, times=8, state="R")
    sceneries = [busy for _ in range(CAPTURES - 2)] + [victims(), victims()]
    assert verdict(engine.analyze(burst(sceneries), signatures))[1] < 0.5


def test_saturated_cpus_are_the_verdict_only_where_nothing_explains_them(
    signatures: catalog.Catalog,
) -> None:
    def scenery(stack: str) -> Scenery:
        one = Scenery(cpus=2)
        one.add(stack, times=40, state="R")
        return one

    work = engine.analyze(burst([scenery(WORK) for _ in range(CAPTURES)], [(WORK, 60)]), signatures)
    assert verdict(work)[0] == "cpu-saturated"
    search = engine.analyze(
        burst([scenery(SEARCH) for _ in range(CAPTURES)], [(SEARCH, 60)]), signatures
    )
    assert verdict(search)[1] < 0.5 or verdict(search)[0] != "cpu-saturated"


def test_sessions_inside_a_slow_call_are_held_up_by_it(signatures: catalog.Catalog) -> None:
    """Nobody waits behind them: each extends a file of its own."""
    extend = (
        "posix_fallocate, fil_extend_space_to_desired_size, fsp_try_extend_data_file, "
        f"fsp_reserve_free_extents, btr_cur_pessimistic_insert, row_ins, {SESSION}"
    )
    sceneries = []
    for _ in range(CAPTURES):
        scenery = Scenery()
        scenery.add(extend, times=12, state="D")
        sceneries.append(scenery)
    analysis = engine.analyze(burst(sceneries, moving=False), signatures)
    assert verdict(analysis)[0] == "innodb-file-extend"
    assert analysis.findings[0].threads >= 11


def test_captures_that_are_analyzed_together_have_one_verdict(signatures: catalog.Catalog) -> None:
    shown = victims()
    shown.add(SEARCH, tid=500, state="R", on_cpu=True)
    captures = [one.capture() for one in (victims(), shown, victims())]
    analysis = engine.analyze_together(captures, signatures)
    assert verdict(analysis)[0] == "innodb-deadlock-check"
    assert analysis.captures == 3


def test_a_lock_that_is_passed_on_is_a_convoy_of_all_its_holders(
    signatures: catalog.Catalog,
) -> None:
    sceneries = []
    for number in range(CAPTURES):
        scenery = Scenery()
        lock = scenery.lock(owner=500 + number % 5, symbol="LOCK_open", stable=False)
        scenery.add(f"{FUTEX}, pthread_mutex_lock, open_table, {SESSION}", times=30, lock=lock)
        for holder in range(5):
            stack = f"open_table_def, open_unireg_entry, open_table, {SESSION}"
            at_it = holder == number % 5
            scenery.add(
                stack if at_it else f"{FUTEX}, pthread_mutex_lock, open_table, {SESSION}",
                tid=500 + holder,
                state="R" if at_it else "S",
                on_cpu=at_it,
                lock=None if at_it else lock,
            )
        sceneries.append(scenery)
    analysis = engine.analyze(burst(sceneries), signatures)
    assert verdict(analysis)[0] == "table-open-lock"
    assert verdict(analysis)[1] >= 0.5
    seen = analysis.findings[0].seen
    assert seen is not None
    assert seen.holders == 5
    assert seen.passed_on is not None
    assert seen.profile


def test_waiters_that_all_looked_around_once_have_waited_no_less(
    signatures: catalog.Catalog,
) -> None:
    """MariaDB's waiters of a metadata lock wake each second: the first capture is from before."""
    scenery = Scenery()
    scenery.add(IDLE_SESSION, tid=5)
    lock = scenery.lock(owner=5, symbol="shop.orders", kind=LockKind.METADATA)
    scenery.add(METADATA, times=20, lock=lock)
    first = burst([scenery] * CAPTURES, moving=False)
    woken = tuple(msgspec.structs.replace(thread, switches=6) for thread in first.threads)
    analysis = engine.analyze(msgspec.structs.replace(first, threads=woken), signatures)
    (finding,) = analysis.findings
    assert finding.impact.time_s == pytest.approx(20 * (CAPTURES - 2) * INTERVAL_NS / 1e9)
    assert any("these threads have waited" in text for text in finding.evidence)


@pytest.mark.parametrize("owner", [700, 900])
def test_the_profile_is_of_who_is_known_to_hold_the_lock(
    owner: int, signatures: catalog.Catalog
) -> None:
    opens = f"MDL_context::acquire_lock, open_table_get_mdl_lock, open_table, {SESSION}"
    wait = f"{COND}, MDL_wait::timed_wait, {opens}"
    sceneries = []
    for _ in range(CAPTURES):
        scenery = Scenery()
        lock = scenery.lock(owner=owner, symbol="shop.orders", kind=LockKind.METADATA)
        scenery.add(wait, times=20, lock=lock)
        scenery.add(f"{COND}, Item_func_sleep::val_int, {SESSION}", tid=owner)
        if owner != 900:
            scenery.add(wait, tid=900, lock=lock)
        sceneries.append(scenery)
    ran = [(f"MDL_context::find_ticket, {opens}", 4)]
    finding = engine.analyze(burst(sceneries, ran), signatures).findings[0]
    assert finding.signature == "metadata-lock"
    assert blocker_of(finding).tid == owner
    assert finding.seen is not None
    assert finding.seen.holders == 1
    assert bool(finding.seen.profile) is (owner == 900)

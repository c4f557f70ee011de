# SPDX-License-Identifier: Apache-2.0
"""Who is to blame for what: stacks of other versions, damaged dumps, rings, single long waits, and
what is said where nothing has a name."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.analyzers import blame, catalog, graph
from stallscope.analyzers.analysis import Analysis, Impact
from stallscope.analyzers.scene import Candidate, Scene
from stallscope.analyzers.stacks import Shapes, Stacks
from stallscope.model.capture import Capture
from tests.unit.scenes import FUTEX, IDLE_SESSION, OPENING, REDO_WAIT, SESSION, Analyze, Scenery

COMMIT_WAIT = (
    f"{FUTEX}, inline_mysql_mutex_lock, MYSQL_BIN_LOG::ordered_commit, ha_commit_trans, {SESSION}"
)


def whole(stack: str, times: int = 12) -> Scenery:
    """Return a server with these waiters, and idle connections."""
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=5, state="?")
    scenery.add(stack, times=times, state="?")
    return scenery


def first(analysis: Analysis) -> tuple[str | None, float]:
    assert analysis.findings
    return analysis.findings[0].signature, analysis.findings[0].confidence


@pytest.mark.parametrize(
    "stack",
    [
        REDO_WAIT.replace("log_write_up_to", "zorn_log, log_write_up_to"),
        REDO_WAIT.replace("os_event_wait_low", "quib, os_event_wait_low"),
        REDO_WAIT.replace("pthread_cond_wait", "futex_wait, flam, drex, pthread_cond_wait"),
        REDO_WAIT.replace("os_event_wait_low", "os_event_wait_low, vosk, plim"),
        OPENING.replace("open_table,", "zorn_open, open_table,"),
    ],
)
def test_unknown_frames_cost_but_do_not_hide(stack: str, analyze: Analyze) -> None:
    known = OPENING if "open_table" in stack else REDO_WAIT
    name, sure = first(analyze(whole(known)))
    same, less = first(analyze(whole(stack)))
    assert (name, True) == (same, less <= sure)
    assert less >= 0.5


def test_three_unknown_frames_are_too_many(analyze: Analyze) -> None:
    stack = OPENING.replace("open_table,", "zorn, quib, flam, open_table,")
    assert first(analyze(whole(stack)))[0] is None


def test_a_dump_without_the_functions_of_libc(analyze: Analyze) -> None:
    stack = REDO_WAIT.replace("pthread_cond_wait, ", "")
    analysis = analyze(whole(stack))
    assert first(analysis)[0] == "innodb-redo-sync"
    assert "running" not in analysis.states


def test_a_thread_that_runs_in_a_function_that_waits_is_no_waiter(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=5)
    scenery.add(REDO_WAIT.replace("pthread_cond_wait, ", ""), times=12, state="R", on_cpu=True)
    assert set(analyze(scenery).states) == {"idle", "running"}


def lost(capture: Capture) -> Capture:
    threads = tuple(msgspec.structs.replace(t, unwind="lost", state="?") for t in capture.threads)
    return msgspec.structs.replace(capture, threads=threads)


def test_a_thread_that_lost_frames_is_never_idle(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=5)
    scenery.add(f"JOIN::exec, {SESSION}")
    scenery.add(OPENING, times=3)
    analysis = analyze(lost(scenery.capture("gdb")))
    assert analysis.states == ("incomplete",) * 6 + ("waiting",) * 3
    assert analysis.findings[0].signs.incomplete == pytest.approx(6 / 9)


def test_a_ring_of_holders_is_a_deadlock(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=3)
    opens = scenery.lock(owner=7, symbol="LOCK_open")
    commits = scenery.lock(owner=8, symbol="LOCK_commit")
    scenery.add(OPENING, times=4, lock=opens)
    scenery.add(COMMIT_WAIT, tid=7, lock=commits)
    scenery.add(OPENING, tid=8, lock=opens)
    scenery.add(COMMIT_WAIT, times=3, lock=commits)
    analysis = analyze(scenery)
    assert first(analysis)[0] == "mutex-deadlock"
    assert analysis.findings[0].threads == 9
    assert {f.victim_of for f in analysis.findings[1:]} == {"mutex-deadlock"}


def test_one_thread_of_an_excerpt_is_one_threads_wait(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(OPENING, state="?")
    (finding,) = analyze(scenery.capture("gdb")).findings
    assert finding.signature == "table-open-lock"
    assert finding.confidence >= 0.5
    assert finding.impact == Impact(threads=1.0, share=1.0)
    assert finding.impact.kind == "wait"


@pytest.mark.parametrize(
    ("threads", "share", "kind"),
    [(1, 1.0, "wait"), (3, 0.3, "stall"), (9, 0.1, "wait"), (2, 0.1, "hint"), (0.4, 0.9, "wait")],
)
def test_kinds_of_impact(threads: float, share: float, kind: str) -> None:
    assert Impact(threads=threads, share=share).kind == kind


def test_where_threads_wait_is_said_without_a_finding(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=20)
    scenery.add(f"{FUTEX}, zorn_wait, zorn_work, {SESSION}", times=2, state="?")
    scenery.add(f"JOIN::exec, {SESSION}", times=9, state="R")
    analysis = analyze(scenery)
    assert analysis.findings == ()
    (place,) = analysis.waiting_in
    assert (place.count, place.frames[:2]) == (2, ("zorn_wait", "zorn_work"))


def test_a_wait_without_a_name_says_what_the_others_do(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=20)
    scenery.add(f"{FUTEX}, buf_zorn_new, {SESSION}", times=12, state="?")
    scenery.add(f"zorn_scan, JOIN::exec, {SESSION}", times=2, state="?")
    scenery.add(f"quib_sort, filesort, {SESSION}", state="?")
    finding = analyze(scenery).findings[0]
    assert finding.signature is None
    assert finding.title.startswith("12 threads wait for a mutex in buf_zorn_new")
    said = " ".join(finding.evidence)
    assert "2 other threads, each is running in zorn_scan" in said
    assert "1 other thread, each is running in quib_sort" in said


def ring_of(signatures: catalog.Catalog, *, certain: bool) -> set[str | None]:
    """Return the roots of two cases whose holders wait in the other one."""
    scenery = Scenery()
    scenery.add(OPENING, times=2)
    scenery.add(REDO_WAIT, times=2)
    capture = scenery.capture()
    stacks = Stacks(capture, Shapes(signatures))
    scene = Scene(
        capture=capture,
        catalog=signatures,
        stacks=stacks,
        states=["waiting"] * 4,
        graph=graph.build(capture),
        cycles=(),
    )
    names = ("table-open-lock", "innodb-redo-sync")
    cases = {}
    for number, name in enumerate(names):
        holder = Candidate(
            2 - 2 * number, "frames", "holds it", chains=True, certain=certain or number == 1
        )
        waiters = (2 * number, 2 * number + 1)
        cases[name] = blame.Case(signatures.by_id[name], waiters, holder, root=names[1 - number])
    blame.add_rings(scene, cases)
    if "mutex-deadlock" in cases:
        assert len(cases["mutex-deadlock"].waiters) == 2
        assert len(cases["mutex-deadlock"].says or ()) == 2
    return {cases[name].root for name in names}


def test_a_ring_of_signatures_is_a_deadlock_where_its_holders_are_certain(
    signatures: catalog.Catalog,
) -> None:
    assert ring_of(signatures, certain=True) == {"mutex-deadlock"}
    assert ring_of(signatures, certain=False) == {"innodb-redo-sync", None}

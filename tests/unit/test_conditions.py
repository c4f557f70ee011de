# SPDX-License-Identifier: Apache-2.0
"""States of the whole process come before what its stacks show."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from stallscope.analyzers.analysis import Analysis
from stallscope.model.capture import Capture, Frame, Thread
from stallscope.reporters import firstlines
from tests.unit.scenes import IDLE_SESSION, OPENING, SESSION, Analyze, Scenery

Change = Callable[[Thread], Thread]


def changed(capture: Capture, change: Change, every: int = 1) -> Capture:
    """Return the capture with each ``every``-th thread changed."""
    threads = tuple(
        change(thread) if number % every == 0 else thread
        for number, thread in enumerate(capture.threads)
    )
    return msgspec.structs.replace(capture, threads=threads)


def in_kernel(*names: str, state: str = "D") -> Change:
    frames = tuple(Frame(symbol=name, kernel=True) for name in names)
    return lambda thread: msgspec.structs.replace(thread, state=state, kernel_frames=frames)


def in_state(letter: str) -> Change:
    return lambda thread: msgspec.structs.replace(thread, state=letter)


def server() -> Capture:
    scenery = Scenery(exe="/usr/sbin/mysqld")
    scenery.add(IDLE_SESSION, times=20)
    lock = scenery.lock(symbol="LOCK_open")
    scenery.add(OPENING, times=5, lock=lock)
    return scenery.capture()


def verdict(analysis: Analysis) -> str | None:
    return analysis.findings[0].signature if analysis.findings else None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (in_state("T"), "process-stopped"),
        (in_state("t"), "process-stopped"),
        (in_state("Z"), "process-ending"),
        (in_kernel("__refrigerator", "get_signal"), "process-frozen"),
        (in_kernel("schedule", "do_freezer_trap", "get_signal", state="S"), "process-frozen"),
        (in_kernel("get_signal", "arch_do_signal_or_restart", state="S"), "process-frozen"),
        (in_state("D"), "process-frozen"),
        (in_kernel("do_coredump", "get_signal"), "process-ending"),
    ],
)
def test_the_state_of_the_process_is_the_verdict(
    analyze: Analyze, change: Change, expected: str
) -> None:
    analysis = analyze(changed(server(), change))
    assert [finding.signature for finding in analysis.findings] == [expected]
    lines = [line.text for line in firstlines.render(analysis, 80)]
    assert lines[0] == "mysqld (pid 1): the whole server stands still, 25 of 25 threads."
    pasted = [line.strip() for line in lines if line.startswith("  kill")]
    assert pasted == (["kill -CONT 1"] if expected == "process-stopped" else [])


@pytest.mark.parametrize("change", [in_state("T"), in_kernel("do_exit"), in_state("D")])
def test_some_of_the_threads_say_nothing(analyze: Analyze, change: Change) -> None:
    found = {finding.signature for finding in analyze(changed(server(), change, 2)).findings}
    assert not any(name and name.startswith("process-") for name in found)


def test_a_disk_that_does_not_answer_is_no_freezer(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(f"fsync, os_file_flush, log_write_up_to, {SESSION}", times=30, state="D")
    assert verdict(analyze(scenery)) != "process-frozen"


def test_what_waits_for_swap(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=20)
    scenery.add(f"buf_page_get_gen, row_search_mvcc, {SESSION}", times=6)
    swapping = in_kernel("folio_wait_bit_common", "do_swap_page", "handle_mm_fault")
    capture = scenery.capture()
    busy = tuple(
        swapping(thread) if number >= 20 else thread
        for number, thread in enumerate(capture.threads)
    )
    analysis = analyze(msgspec.structs.replace(capture, threads=busy))
    assert verdict(analysis) == "process-swapped"
    assert "stands still" not in firstlines.headline(analysis)


def test_an_empty_capture_is_in_no_state(analyze: Analyze) -> None:
    assert verdict(analyze(Scenery())) is None

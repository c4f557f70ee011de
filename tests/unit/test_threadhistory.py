# SPDX-License-Identifier: Apache-2.0
"""The thread history: what is active, what of an interval is shown, and that memory is bounded."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.model import threadhistory
from stallscope.model.threadhistory import MAX_SAMPLE_ROWS, MAX_SAMPLES, ThreadHistory
from stallscope.model.waitlines import ThreadRow, ThreadSample
from tests.unit.threadlines import COND, FSYNC, IDLE, MUTEX, RUNNING, sample

NS = 10**9
START = 1_732_395_600 * NS

REST = ThreadRow(4)


def at(second: float, *rows: ThreadRow) -> ThreadSample:
    return sample(START + round(second * NS), *rows)


@pytest.mark.parametrize(
    ("row", "wanted", "active"),
    [
        (IDLE, "idle", False),
        (COND, "idle", False),
        (MUTEX, "mutex", True),
        (FSYNC, "fsync", True),
        (RUNNING, "running", True),
        (REST, "other", False),
        (ThreadRow(1, "R", "futex", "cond"), "running", True),
        (ThreadRow(1, "D"), "uninterruptible", True),
        (ThreadRow(1, "D", "futex", "cond"), "uninterruptible", True),
        (ThreadRow(1, "S", "x", "a kind of later"), "other", False),
        (ThreadRow(1, "Z"), "idle", False),
    ],
)
def test_what_threads_of_a_row_do(row: ThreadRow, wanted: str, active: bool) -> None:
    assert threadhistory.activity(row) == wanted
    assert threadhistory.active(wanted) == active


def test_samples_come_back_as_they_were() -> None:
    history = ThreadHistory()
    samples = [at(second, MUTEX, IDLE, RUNNING, REST) for second in range(5)]
    for one in samples:
        history.add(one)
    assert list(history.since(0)) == samples
    assert list(history.since(START + 3 * NS)) == samples[3:]
    assert list(history.since(START + NS, START + 3 * NS)) == samples[1:3]
    assert history.latest() == samples[-1]
    assert history.rows == 4


def test_the_top_rows_are_the_active_ones_first() -> None:
    samples = [at(0, MUTEX, IDLE), at(1, MUTEX, IDLE, FSYNC), at(2, IDLE), at(3, IDLE)]
    found = threadhistory.top(samples)
    assert [one.row.kind for one in found] == ["mutex", "fsync", None]
    assert [one.mean for one in found] == [6.0, 0.75, 380.0]
    assert [one.row.count for one in found] == [12, 3, 380]
    assert [one.samples for one in found] == [2, 1, 4]
    assert threadhistory.top([]) == []


def test_threads_by_activity_over_time() -> None:
    samples = [at(0, MUTEX, IDLE), at(1, RUNNING, COND), at(7, RUNNING)]
    first, second = threadhistory.buckets(samples, 5 * NS)
    assert first.time_ns == START
    assert first.counts == {"mutex": 6.0, "idle": 195.0, "running": 1.0}
    assert (first.samples, first.active, first.threads) == (2, 7.0, 202.0)
    assert (second.time_ns, second.counts) == (START + 5 * NS, {"running": 2.0})
    assert threadhistory.in_order(first.counts) == ["running", "mutex", "idle"]


def test_samples_that_are_too_old_are_dropped_and_their_rows_with_them() -> None:
    history = ThreadHistory()
    history.add(at(0, MUTEX))
    for second in range(1, 900):
        history.add(at(second, IDLE))
    assert (len(history), history.rows) == (900, 2)
    history.add(at(900, IDLE))
    assert (len(history), history.rows) == (900, 1)
    history.clear()
    assert (len(history), history.rows) == (0, 0)


def test_a_clock_that_is_set_removes_nothing_and_changes_no_order() -> None:
    history = ThreadHistory()
    seconds = [0, 10, 20, 5, 6, 31 * 86_400, 31 * 86_400 + 1, 7, 8]
    for second in seconds:
        history.add(at(second, RUNNING))
    assert [s.time_ns for s in history.since(0)] == [START + s * NS for s in seconds]
    for second in range(9, 8 + 880):
        history.add(at(second, RUNNING))
    assert next(history.since(0)).time_ns == START + 10 * NS, "what has really passed counts"


def test_samples_that_come_too_often_are_bounded() -> None:
    history = ThreadHistory()
    for number in range(3 * MAX_SAMPLES):
        history.add(at(number / 100, RUNNING))
    assert len(history) == MAX_SAMPLES


def hostile(number: int, rows: int) -> ThreadSample:
    """Return a sample in which no name was there before."""
    names = (f"{number}-{row}".ljust(200, "€") for row in range(rows))
    many = (ThreadRow(1 << 22, "S", name, "mutex", name[::-1], name + "x") for name in names)
    return at(number, *many)


@pytest.mark.large
def test_memory_is_bounded_whatever_the_names_are() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        history = ThreadHistory()
        peaks = []
        for number in range(2400):
            history.add(hostile(number, MAX_SAMPLE_ROWS if number % 100 else 700))
            if number % 600 == 599:
                peaks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert peaks[-1] < 6 << 20
    assert peaks[-1] < peaks[1] * 1.1, "it does not grow once it is full"
    assert history.rows <= threadhistory.MAX_ROWS + 512
    latest = history.latest()
    assert latest is not None
    assert threadhistory.activities(latest)["mutex"] > 0, "the kind is kept where names are not"
    assert threadhistory.activities(latest).total() == latest.threads


def test_more_rows_than_a_sample_has_are_summed() -> None:
    history = ThreadHistory()
    history.add(hostile(0, 3000))
    latest = history.latest()
    assert latest is not None
    assert len(latest.rows) == MAX_SAMPLE_ROWS + 1
    assert latest.rows[-1] == ThreadRow((1 << 32) - 1)


row_values = st.builds(
    ThreadRow,
    st.integers(0, 1 << 22),
    *(st.sampled_from([None, "", "S", "R", "D", "mutex", "cond", "fsync", "x" * 300]),) * 5,
)


@given(st.lists(st.tuples(st.integers(0, 2000), st.lists(row_values, max_size=4)), max_size=30))
def test_any_rows_at_any_time_are_counted_once(made: list[tuple[int, list[ThreadRow]]]) -> None:
    history = ThreadHistory(60)
    for second, rows in made:
        history.add(at(second, *rows))
    kept = list(history.since(0))
    assert len(kept) == len(history)
    times = [START + second * NS for second, _ in made]
    assert [sample.time_ns for sample in kept] == times[len(times) - len(kept) :]
    assert sum(threadhistory.activities(sample).total() for sample in kept) == sum(
        sample.threads for sample in kept
    )
    threadhistory.top(kept)
    threadhistory.buckets(kept, NS)
    history.clear()
    assert history.rows == 0

# SPDX-License-Identifier: Apache-2.0
"""Triggers on waits of the probes, and what an engine takes along."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.collectors.triggers.waiting import sample_of
from stallscope.model.capture import Trigger
from stallscope.model.samples import Sample
from stallscope.model.waitlines import SCHEMA, Key, KindWaits, WaitLine

NS = 1_000_000_000
SYNC = TriggerSettings("sync", wait="sync", threshold=1000.0, sleep=10.0, clear_cycles=2)
CONVOY = TriggerSettings("convoy", wait="lock", threshold=500.0, convoy=10, sleep=0.0)


def engine(*triggers: TriggerSettings) -> Engine:
    return Engine(AgentSettings(triggers=triggers))


def line(kind: str = "fsync", longest: float = 0.0, waiters: int = 1) -> WaitLine:
    kinds = {kind: KindWaits(7, 30.0, 12.5, in_flight=waiters)}
    key = Key(7, 30.0, 12.5, kind=kind, name="a", in_flight=waiters, longest_in_flight_ms=longest)
    return WaitLine(SCHEMA, 0.0, 1.0, kinds, (key,) if waiters else (), {})


def wait(kind: str = "fsync", length: float = 1200.0, waiters: int = 1) -> Trigger:
    return Trigger("threshold", kind, name="ib_logfile0", length_ms=length, waiters=waiters)


def test_a_capture_of_the_probe_fires_its_trigger() -> None:
    one = engine(SYNC, CONVOY)
    fired = one.feed_wait(wait(), 5, NS)
    assert fired is not None
    assert (fired.trigger, fired.value, fired.threshold, fired.time_ns) == ("sync", 1200, 1000, 5)
    assert fired.why == "fsync of ib_logfile0 has waited 1,200 ms (threshold 1,000 ms)"
    assert fired.wait == wait()
    assert one.breached == ("sync",)
    assert one.feed_wait(wait(), 6, 2 * NS) is None, "it goes on"


def test_a_long_path_keeps_its_file() -> None:
    long = msgspec.structs.replace(wait(), name=f"/{'deep/' * 30}mysql/ib_logfile0")
    fired = engine(SYNC).feed_wait(long, 5, NS)
    assert fired is not None
    assert fired.why.startswith("fsync of …/deep/")
    assert fired.why.endswith("/mysql/ib_logfile0 has waited 1,200 ms (threshold 1,000 ms)")


@pytest.mark.parametrize(
    "other", [wait("read"), wait(length=999.0), wait("mutex", 900.0, 9), wait("cond", 1e6, 50)]
)
def test_other_waits_fire_nothing(other: Trigger) -> None:
    assert engine(SYNC, CONVOY).feed_wait(other, 0, NS) is None


def test_a_convoy() -> None:
    fired = engine(SYNC, CONVOY).feed_wait(wait("mutex", 600.0, 12), 0, NS)
    assert fired is not None
    assert fired.trigger == "convoy"
    assert fired.why == (
        "12 threads wait for mutex ib_logfile0 (threshold 10),"
        " one of them 600 ms (threshold 500 ms)"
    )


def test_lines_fire_and_clear() -> None:
    one = engine(SYNC)
    seen = [
        bool(one.feed_waits(line(longest=longest), 0, second * NS))
        for second, longest in enumerate(
            (900, 1900, 2900, 10, 3000, 10, 10, 1900, 2900, 3900, 4900)
        )
    ]
    assert [second for second, fires in enumerate(seen) if fires] == [1, 7]
    assert one.states()[0].suppressed == 1, "sleep is ten seconds from when it fired"


def test_a_long_wait_and_a_convoy_must_be_of_one_lock() -> None:
    both = line("mutex", longest=700.0, waiters=2)
    crowd = Key(9, 1.0, 1.0, kind="mutex", name="b", in_flight=40, longest_in_flight_ms=3.0)
    both = msgspec.structs.replace(both, keys=(*both.keys, crowd))
    assert engine(CONVOY).feed_waits(both, 0, NS) == ()


def test_waits_in_steps_fire_and_go_on() -> None:
    """MariaDB waits for a metadata lock in steps of a second, and a line comes each second."""
    one = engine(msgspec.structs.replace(CONVOY, clear_cycles=1))
    step = Key(21, 21e3, 1000.1, kind="metadata-lock", name="t", in_flight=21)
    for second, so_far in enumerate((356.0, 355.2, 2.5, 499.0)):
        key = msgspec.structs.replace(step, longest_in_flight_ms=so_far)
        lines = msgspec.structs.replace(line("metadata-lock"), keys=(key,))
        assert len(one.feed_waits(lines, 0, second * NS)) == (second == 0)
        assert one.breached == ("convoy",)
    # Between two steps, or when they have ended: the next line shows which.
    ended = msgspec.structs.replace(step, in_flight=0)
    assert not one.feed_waits(msgspec.structs.replace(lines, keys=(ended,)), 0, 5 * NS)
    assert one.breached == ("convoy",)
    assert not one.feed_waits(msgspec.structs.replace(lines, keys=()), 0, 6 * NS)
    assert not one.breached


def test_lines_are_samples() -> None:
    sample = sample_of(line("row-lock", longest=70.0, waiters=3), 5, 6)
    assert (sample.source, sample.time_ns, sample.clock_ns) == ("waits", 5, 6)
    assert sample.values == {
        "waits.row-lock.count": 7,
        "waits.row-lock.max_ms": 12.5,
        "waits.row-lock.in_flight": 3,
        "waits.row-lock.longest_ms": 70.0,
        "waits.row-lock.convoy": 3,
    }
    own = TriggerSettings("own", variable="waits.row-lock.convoy", threshold=2.0, cycles=1)
    (fired,) = engine(own).feed_waits(line("row-lock", waiters=3), 0, NS)
    assert fired.why == "waits.row-lock.convoy is 3, over 2; in 1 sample"


def beat(second: int, error: str | None = None, owed_ms: float | None = None) -> Sample:
    values = {"heartbeat.ms": 1.0} if error is None else {}
    if owed_ms is not None:
        values["heartbeat.unanswered_ms"] = owed_ms
    return Sample("heartbeat", 0, second * NS, values, 1.0, error)


def test_a_server_that_starts_owes_no_answer_for_a_time() -> None:
    hung = TriggerSettings("hung", variable="heartbeat.unanswered_ms", threshold=1500.0, cycles=1)
    one = engine(hung)
    assert one.feed(beat(1, "connecting", 1600)) == ()
    assert one.feed(beat(2)) == ()
    assert one.feed(beat(3, "refused")) == ()
    assert one.feed(beat(4, "late", 1600))
    for second in range(5, 50):
        assert one.feed(beat(second, "refused")) == ()
    assert list(one.breached) == ["hung"], "a refusal does not show that it is over"
    one.restarted()
    assert not one.breached
    assert one.feed(beat(400, "connecting", 1600)) == ()
    assert one.feed(beat(402, "connecting", 2100)), "clients wait as long"


def test_baselines_are_taken_along() -> None:
    drop = TriggerSettings(
        "drop", variable="Threads_running / baseline(Threads_running)", threshold=3.0, cycles=1
    )
    first, later, other = engine(drop), engine(drop), engine(CONVOY)
    for second in range(130):
        first.feed(Sample("status", 0, second * NS, {"Threads_running": 4.0}))
    later.restore_baselines(first.baselines())
    other.restore_baselines(first.baselines())
    many = Sample("status", 0, 10_000 * NS, {"Threads_running": 20.0})
    (fired,) = later.feed(many)
    assert fired.value == 5
    assert engine(drop).feed(many) == ()

# SPDX-License-Identifier: Apache-2.0
"""When a trigger fires, and when it does not: the state machine and the baselines."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stallscope.collectors.triggers.baseline import Baseline
from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.collectors.triggers.state import Machine, Phase
from stallscope.model.samples import Sample
from stallscope.model.stallstatus import Status

NS = 1_000_000_000


def machine(cycles: int = 3, clear_cycles: int = 2, sleep: float = 10) -> Machine:
    return Machine(cycles, clear_cycles, int(sleep * NS), NS)


def fires(one: Machine, samples: str, start: int = 0) -> list[int]:
    """Return the seconds at which it fires. ``+`` breached, ``-`` clear, ``.`` between, ``?``."""
    meaning: dict[str, tuple[bool | None, bool | None]] = {
        "+": (True, False),
        "-": (False, True),
        ".": (False, False),
        "?": (None, None),
    }
    return [
        second
        for second, sample in enumerate(samples, start)
        if one.take(*meaning[sample], second * NS)
    ]


def test_fires_after_so_many_in_a_row() -> None:
    assert fires(machine(), "++-++-+++") == [8]


def test_an_unknown_value_neither_counts_nor_clears() -> None:
    assert fires(machine(), "+?+?+") == [4]
    one = machine(sleep=0)
    assert fires(one, "+++-?-") == [2]
    assert one.phase is Phase.CALM


def test_a_long_silence_ends_a_row() -> None:
    assert fires(machine(), "++" + "?" * 30 + "+") == []


def test_does_not_fire_again_until_it_was_clear() -> None:
    assert fires(machine(sleep=0), "+" * 50) == [2]
    assert fires(machine(sleep=0), "+++-+++") == [2], "one clear sample of two"
    assert fires(machine(sleep=0), "+++...." + "+" * 9) == [2], "below the threshold is not over"
    assert fires(machine(sleep=0), "+++--+++") == [2, 7]


def test_a_breach_within_the_sleep_fires_and_is_counted() -> None:
    one = machine(sleep=10)
    assert fires(one, "+++--+++") == [2, 7]
    assert one.suppressed == 1
    assert fires(one, "--+++", start=8) == [12]
    assert one.suppressed == 1, "the sleep is from the breach that was outside of one"


def test_samples_that_come_late_are_dropped() -> None:
    one = machine(cycles=2)
    assert not one.take(True, False, 10 * NS)
    assert not one.take(True, False, 9 * NS)
    assert not one.take(True, False, 10 * NS)
    assert one.take(True, False, 11 * NS)


def test_a_breach_is_over_at_the_first_of_its_clear_samples() -> None:
    one = machine(cycles=1, clear_cycles=3, sleep=0)
    assert fires(one, "+++--+--") == [0]
    over = [one.over_ns]
    assert fires(one, "-", start=8) == []
    assert [*over, one.over_ns] == [None, 6 * NS]


def test_a_breach_goes_on_until_values_show_its_end() -> None:
    one = machine(cycles=1, sleep=0)
    assert fires(one, "++" + "?" * 10_000 + "-") == [0]
    assert one.phase is Phase.FIRED, "one clear sample of two"
    assert fires(one, "?" * 30 + "-", start=20_000) == []
    assert one.phase is Phase.FIRED, "the first was too long ago"
    fires(one, "-", start=20_031)
    assert (one.phase, one.over_ns) == (Phase.CALM, 20_030 * NS)


def test_what_is_known_at_each_time() -> None:
    one = machine(cycles=2, clear_cycles=2, sleep=0)
    seen = []
    for second, sample in enumerate("-?-.--++?--" + "?" * 12):
        fires(one, sample, start=second)
        seen.append(one.status(second * NS).value[0])
    assert "".join(seen) == "uuc" + "uuc" + "us" + "sss"[:2] + "c" + "c" * 10 + "uu"


def test_a_restart_is_no_evidence() -> None:
    one = machine(cycles=1, clear_cycles=1, sleep=0)
    fires(one, "+--")
    assert one.status(2 * NS) is Status.CLEAR
    one.restarted()
    assert one.status(2 * NS) is Status.UNKNOWN


def test_other_settings_end_no_breach() -> None:
    before, after = engine(cycles=1), engine(cycles=3, threshold=20.0)
    assert before.feed(running(0, 100))
    after.follow(before)
    assert after.breached == ("busy",)
    assert not after.feed(running(1, 100)), "it has fired already"
    for second in range(2, 8):
        after.feed(running(second, 1))
    assert not after.breached


def test_restart_ends_what_was_breached() -> None:
    one = machine(sleep=0)
    assert fires(one, "+++") == [2]
    one.restarted()
    assert one.phase is Phase.CALM
    assert fires(one, "+++", start=3) == [5]


SAMPLES = st.lists(st.sampled_from("+-.?"), max_size=200).map("".join)


@given(SAMPLES, st.integers(1, 6), st.integers(1, 6), st.integers(0, 30))
def test_never_below_cycles_and_never_twice_without_a_clear(
    samples: str, cycles: int, clear_cycles: int, sleep: int
) -> None:
    fired = fires(machine(cycles, clear_cycles, sleep), samples)
    for second in fired:
        known = samples[: second + 1].replace("?", "")
        assert known.endswith("+" * cycles)
    for before, after in itertools.pairwise(fired):
        between = samples[before + 1 : after + 1].replace("?", "")
        assert "-" * clear_cycles in between
        assert after - before >= sleep


def engine(poll_interval: float = 1.0, **changes: Any) -> Engine:
    busy = TriggerSettings(name="busy", variable="Threads_running", threshold=10.0, cycles=2)
    return Engine(
        AgentSettings(
            poll_interval=poll_interval, triggers=(msgspec.structs.replace(busy, **changes),)
        )
    )


def running(second: float, value: float, wall: int = 0) -> Sample:
    return Sample("status", wall, int(second * NS), values={"Threads_running": value})


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(-(10**18), 10**18)), max_size=60),
    st.randoms(use_true_random=False),
)
def test_the_wall_clock_decides_nothing(
    samples: list[tuple[float, int]], randomness: random.Random
) -> None:
    jumping, steady = engine(sleep=5.0), engine(sleep=5.0)
    for second, (value, wall) in enumerate(samples):
        jumped = jumping.feed(running(second, value, wall))
        followed = steady.feed(running(second, value, second))
        assert [f.why for f in jumped] == [f.why for f in followed]
        assert all(fired.time_ns == wall for fired in jumped)


def test_the_sentence_has_the_numbers() -> None:
    one = engine()
    assert one.feed(running(0, 187)) == ()
    (fired,) = one.feed(running(1, 188))
    assert fired.why == "Threads_running is 188, over 10; in 2 samples in a row"
    assert (fired.trigger, fired.value, fired.threshold) == ("busy", 188, 10)
    assert one.breached == ("busy",)


def test_the_sentence_of_a_condition_has_what_it_compared() -> None:
    text = "Threads_running > 3 and Uptime > 1 + 0.5"
    one = engine(variable=text, threshold=None, cycles=1)
    sample = Sample("status", 0, NS, values={"Threads_running": 8, "Uptime": 2})
    (fired,) = one.feed(sample)
    assert fired.why == "Threads_running is 8, over 3; Uptime is 2, over 1.5; in 1 sample"
    assert (fired.value, fired.threshold) == (None, None)


def test_a_threshold_that_is_not_known_fires_nothing() -> None:
    one = engine(threshold="greatest(9, host.cpus)", cycles=1)
    assert one.feed(running(1, 80)) == ()
    assert one.states()[0].never_seen == ("host.cpus",)
    assert one.states()[0].samples == 0


def test_breaches_in_a_sleep_are_counted() -> None:
    one = engine(interval=0.0, cycles=1, sleep=300.0, clear_cycles=1)
    fired = [one.feed(running(tick / 1000, 99 if tick % 2 else 0)) for tick in range(1000)]
    assert sum(map(len, fired)) == 500
    assert one.states()[0].suppressed == 499


def test_hysteresis() -> None:
    one = engine(clear=4.0, clear_cycles=1, cycles=1, sleep=0.0)
    values = (11, 5, 11, 4, 11)
    assert [bool(one.feed(running(s, v))) for s, v in enumerate(values)] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_below() -> None:
    one = engine(when="below", cycles=1)
    assert one.feed(running(1, 10)) == ()
    (fired,) = one.feed(running(2, 9))
    assert fired.why == "Threads_running is 9, below 10; in 1 sample"


def test_a_faster_poll_does_not_count_faster_than_its_interval() -> None:
    one = engine(0.05, cycles=3)
    fired = [tick for tick in range(100) if one.feed(running(tick / 20, 99))]
    assert fired == [36], "two intervals, each a little short, after the first sample"


def test_samples_that_come_early_count() -> None:
    one = engine(cycles=3)
    fired = [second for second in (0, 0.7, 1.6, 3) if one.feed(running(second, 99))]
    assert fired == [1.6]


def test_samples_of_others_do_not_make_it_poll() -> None:
    one = engine(variable="Threads_running + 0 * host.cpus", cycles=2)
    one.feed(Sample("load", 0, 0, values={"host.cpus": 2}))
    assert one.feed(running(1, 99)) == ()
    for second in (1.2, 2.4, 3.6):
        assert one.feed(Sample("load", 0, int(second * NS), values={"host.cpus": 2})) == ()
    assert one.feed(running(4, 99))


def test_failed_samples_neither_count_nor_clear() -> None:
    one = engine(cycles=2)
    one.feed(running(1, 99))
    assert one.feed(Sample("status", 0, 2 * NS, error="late")) == ()
    assert one.feed(running(3, 99))
    for second in range(4, 60):
        one.feed(Sample("status", 0, second * NS, error="late"))
    assert one.breached == ("busy",)


def learned(baseline: Baseline, start: int, seconds: int, value: float, **how: bool) -> Baseline:
    for second in range(start, start + seconds):
        baseline.learn(value, second * NS, incident=how.get("incident", False))
    return baseline


def test_nothing_is_usual_before_it_was_watched() -> None:
    assert learned(Baseline(), 0, 119, 50).value is None
    assert learned(Baseline(), 0, 121, 50).value == 50


def test_a_minute_of_something_else_is_not_usual() -> None:
    one = learned(Baseline(), 0, 600, 1000)
    assert learned(one, 600, 120, 3).value == 1000
    assert learned(one, 720, 600, 3).value == 3, "after ten minutes it is"


def test_day_and_night() -> None:
    one = Baseline()
    for second in range(6 * 3600):
        usual = 1000 - second / 30  # 1000 to 280 in six hours
        one.learn(usual, second * NS, incident=False)
        if one.value is not None:
            assert abs(one.value - usual) < 0.1 * usual


def test_an_incident_changes_no_baseline_unless_it_lasts() -> None:
    one = learned(Baseline(), 0, 300, 1000)
    assert learned(one, 300, 800, 3, incident=True).value == 1000
    assert learned(one, 1100, 1200, 3, incident=True).value == 3


@given(st.lists(st.tuples(st.floats(0, 1e9), st.booleans(), st.integers(0, 100)), max_size=300))
def test_a_baseline_is_within_what_was_seen(samples: list[tuple[float, bool, int]]) -> None:
    one, clock = Baseline(), 0
    for value, incident, seconds in samples:
        clock += seconds * NS
        one.learn(value, clock, incident=incident)
    if one.value is not None:
        values = [value for value, _, _ in samples]
        assert min(values) <= one.value * (1 + 1e-9)
        assert one.value <= max(values) * (1 + 1e-9)


def test_a_breach_is_confirmed_soon_while_a_wait_is_long() -> None:
    one = engine(poll_interval=0.1)
    assert not one.feed(running(10, 1), hurried=True)
    seen = []
    for second, hurried in ((10.1, True), (11, False), (11.1, True), (11.2, False), (11.3, True)):
        fires = bool(one.feed(running(second, 100), hurried=hurried))
        seen.append((second, fires, one.counting))
    assert seen == [
        (10.1, False, False),  # nothing counts yet
        (11, False, True),
        (11.1, False, True),  # a fifth of the interval is not over
        (11.2, False, True),  # no wait is long
        (11.3, True, False),
    ]

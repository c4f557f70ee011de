# SPDX-License-Identifier: Apache-2.0
"""The sentence of a trigger: a person who is woken by it reads what passed which threshold."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.expression import ExpressionError
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.model.samples import Sample
from tests.unit.test_triggers_expression import EXPRESSIONS

NS = 1_000_000_000
SECONDS = 200
STALL = 150


def said(trigger: TriggerSettings, calm: dict[str, float], stall: dict[str, float]) -> str:
    """Return what a trigger says first in a stall after minutes without one. Counters grow by
    their value."""
    engine = Engine(AgentSettings(triggers=(trigger,)))
    total = dict.fromkeys(calm, 0.0)
    for second in range(SECONDS):
        now = stall if second >= STALL else calm
        total = {name: total.get(name, 0.0) + value for name, value in now.items()}
        values = {n: total[n] if n.startswith(("Questions", "Handler")) else now[n] for n in now}
        values["Uptime"] = second
        for source in ("status", "processlist"):
            mine = {n: v for n, v in values.items() if n.startswith(source) == (source != "status")}
            for fired in engine.feed(Sample(source, 0, second * NS, values=mine)):
                assert second >= STALL
                return fired.why
    raise AssertionError("it did not fire")


def default(name: str) -> TriggerSettings:
    (found,) = [t for t in triggerfile.defaults().triggers if t.name == name]
    return msgspec.structs.replace(found, about="")


@pytest.mark.parametrize(
    ("name", "calm", "stall", "expected"),
    [
        (
            "row-lock",
            {"Innodb_row_lock_current_waits": 1, "Threads_running": 4, "Questions": 3000},
            {"Innodb_row_lock_current_waits": 30, "Threads_running": 31, "Questions": 4},
            "Innodb_row_lock_current_waits is 30, over 15.5 (half of Threads_running, which is 31);"
            " Questions per second is 4, below 775 (25 x Threads_running, which is 31);"
            " in 2 samples in a row",
        ),
        (
            "row-lock",
            {"Innodb_row_lock_current_waits": 1, "Threads_running": 4, "Questions": 3000},
            {"Innodb_row_lock_current_waits": 11, "Threads_running": 12, "Questions": 4},
            "Innodb_row_lock_current_waits is 11, over 9;"
            " Questions per second is 4, below 300 (25 x Threads_running, which is 12);"
            " in 2 samples in a row",
        ),
        (
            "qps-collapse",
            {"processlist.running": 4, "Threads_running": 4, "Questions": 3000},
            {
                "processlist.running": 40,
                "processlist.state.User sleep": 3,
                "Threads_running": 40,
                "Questions": 4,
            },
            '37 running threads not in state "User sleep" or "User lock", over 8'
            " (2 x the usual Threads_running, which is 4);"
            " Questions per second is 4, below 750 (0.25 x its usual value, which is 3,000);"
            " the usual Questions per second is 3,000, over 50;"
            " Questions per second is 4, below 400 (10 x running threads, which are 40);"
            " in 2 samples in a row",
        ),
        (
            "metadata-lock",
            {"processlist.running": 4},
            {
                "processlist.running": 9,
                "processlist.state.Waiting for table metadata lock": 5,
                "processlist.state.Waiting for schema metadata lock": 2,
            },
            '7 threads in state "Waiting for * metadata lock", over 2; in 2 samples in a row',
        ),
        (
            "global-read-lock",
            {"processlist.running": 4},
            {
                "processlist.running": 9,
                "processlist.state.Waiting for global read lock": 5,
                "processlist.state.Waiting for commit lock": 2,
            },
            '7 threads in state "Waiting for global read lock" (5) or "Waiting for commit lock"'
            " (2), over 2; in 2 samples in a row",
        ),
    ],
)
def test_the_default_triggers(
    name: str, calm: dict[str, float], stall: dict[str, float], expected: str
) -> None:
    assert said(default(name), calm, stall) == expected


@pytest.mark.parametrize(
    ("variable", "threshold", "expected"),
    [
        (
            "Threads_running",
            "5 * avg(Threads_running, 60)",
            "Threads_running is 40, over 23 (5 x its average of the last 60 s, which is 4.6)",
        ),
        ("heartbeat.ms", 500, "heartbeat.ms is 812 ms, over 500 ms"),
        ("psi.memory.full_avg10", 25, "psi.memory.full_avg10 is 40.5 %, over 25 %"),
        ("process.rss_bytes", 1e9, "process.rss_bytes is 2,000,000,000 bytes, over 1,000,000,000"),
        ("host.run_queue", "2 * host.cpus + 2", "host.run_queue is 18.04, over 18.03"),
        (
            "backends.waiting - 1",
            4,
            "waiting connections - 1 is 9 (waiting connections 10), over 4",
        ),
        ("Threads_running > 9 or heartbeat.ms > 900", None, "Threads_running is 40, over 9; in"),
        ("not (heartbeat.ms <= 500)", None, "heartbeat.ms is 812 ms, over 500 ms"),
        ("5 < Threads_running", None, "Threads_running is 40, over 5"),
        ("Threads_running >= coalesce(Missing, 40)", None, "Threads_running is 40, at least 40"),
        ("Threads_running == 40", None, "Threads_running is 40, equal to 40"),
        ("backends.waiting > 8 and Missing > 1 or 3 > 2", None, "3 is 3, over 2"),
    ],
)
def test_figures_have_names_units_and_thresholds(
    variable: str, threshold: float | str | None, expected: str
) -> None:
    calm = {"Threads_running": 4.0, "heartbeat.ms": 2.0, "host.cpus": 8.015}
    calm |= {"psi.memory.full_avg10": 0, "process.rss_bytes": 1e6, "host.run_queue": 1}
    stall = calm | {"Threads_running": 40, "heartbeat.ms": 812, "process.rss_bytes": 2e9}
    stall |= {"host.run_queue": 18.04, "psi.memory.full_avg10": 40.5, "backends.waiting": 10}
    if "3 > 2" in variable:
        calm = {}
    trigger = TriggerSettings("own", variable=variable, threshold=threshold, cycles=1)
    engine = Engine(AgentSettings(triggers=(trigger,)))
    why = ""
    for second in range(70):
        now = stall if second == 69 else calm
        for fired in engine.feed(Sample("all", 0, second * NS, values=now)):
            why = fired.why
    assert why.startswith(expected), why


def test_what_it_detects_comes_first() -> None:
    trigger = TriggerSettings("own", about="too many", variable="a", threshold=1.0, cycles=1)
    (fired,) = Engine(AgentSettings(triggers=(trigger,))).feed(Sample("s", 0, 0, values={"a": 2}))
    assert fired.why == "too many: a is 2, over 1; in 1 sample"


@given(EXPRESSIONS, EXPRESSIONS, st.lists(st.sampled_from([0, 1, 2.5, 1e300]), max_size=12))
def test_any_expression_has_a_sentence(one: str, other: str, values: list[float]) -> None:
    variable = f"({one} > {other} or not a == 0)"
    with contextlib.suppress(ExpressionError):
        trigger = TriggerSettings("own", variable=variable, cycles=1, clear_cycles=1, sleep=0.0)
        engine = Engine(AgentSettings(poll_interval=1.0, triggers=(trigger,)))
        for second, value in enumerate(values):
            seen = {"a": value, "psi.x": 100 * value, "processlist.state.x": second}
            for fired in engine.feed(Sample("processlist", 0, second * NS, values=seen)):
                assert fired.why.isprintable()
                assert len(fired.why) <= 500
                assert " in 1 sample" in fired.why or fired.why.endswith("…")

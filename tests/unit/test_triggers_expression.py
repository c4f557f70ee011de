# SPDX-License-Identifier: Apache-2.0
"""Expressions of triggers: what they mean over time, and what is not one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.collectors.triggers.evaluation import Evaluation, Moment
from stallscope.collectors.triggers.expression import (
    ExpressionError,
    Name,
    is_condition,
    names,
    parse,
)
from stallscope.collectors.triggers.readings import Readings
from stallscope.model.samples import Sample

NS = 1_000_000_000
STALE = 5 * NS


def sample(second: float, source: str = "status", **values: float) -> Sample:
    clock = int(second * NS)
    return Sample(source, clock, clock, values={n.replace("__", "."): v for n, v in values.items()})


class Run:
    """An expression that is fed with samples."""

    def __init__(self, text: str, constants: Mapping[str, float] | None = None) -> None:
        self.evaluation = Evaluation(parse(text))
        self.readings = Readings(self.evaluation.names, constants)

    def see(self, *samples: Sample, incident: bool = False) -> float | None:
        for one in samples:
            self.readings.take(one)
        return self.evaluation.value(Moment(self.readings, samples[-1].clock_ns, STALE, incident))


def value(text: str, **values: float) -> float | None:
    return Run(text).see(sample(1, "status", **values))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", 6),
        ("1 + 2 * 3 - a / 2", 4),
        ("(1 + 2) * 3", 9),
        ("-a + --b", -2),
        ("1e3 + .5 + 2.", 1002.5),
        ("a > 5", 1),
        ("a <= 5", 0),
        ("a == 6 and b != 6", 1),
        ("not a == 6 or b > 3", 1),
        ("not (a == 6 or b > 3)", 0),
        ("greatest(a, b) - least(a, b)", 2),
        ("coalesce(missing, b)", 4),
        ("coalesce(a, missing)", 6),
        ("a < 1 and missing > 1", 0),
        ("missing > 1 or a == 6", 1),
    ],
)
def test_values(text: str, expected: float) -> None:
    assert value(text, a=6, b=4) == expected


@pytest.mark.parametrize(
    "text",
    [
        "missing",
        "missing + 1",
        "a / zero",
        "1 / (a - a)",
        "missing > 1",
        "not missing",
        "a == 6 and missing > 1",
        "missing > 1 or a < 1",
        "coalesce(missing, missing)",
        "1e308 * 1e308 - 1e308 * 1e308",
        "rate(a)",
        "baseline(a)",
        "avg(a, 10)",
        'state("x")',
        'command("x")',
    ],
)
def test_an_unknown_value_is_none(text: str) -> None:
    assert value(text, a=6, zero=0) is None


def test_numbers_that_are_none_are_not_known() -> None:
    assert value("a", a=math.nan) is None
    assert value("a > 1", a=math.inf) is None


def test_old_values_are_not_known() -> None:
    run = Run("a + b")
    assert run.see(sample(1, a=1, b=2)) == 3
    assert run.see(sample(5, a=1)) == 3
    assert run.see(sample(7, a=1)) is None


def test_constants_are_overruled_by_samples() -> None:
    run = Run("host.cpus + a", {"host.cpus": 2})
    assert run.see(sample(1, a=1)) == 3
    assert run.see(sample(2, a=1), sample(2, "load", host__cpus=8)) == 9


def test_rate_and_delta() -> None:
    rate, delta = Run("rate(a)"), Run("delta(a)")
    assert [run.see(sample(1, a=100)) for run in (rate, delta)] == [None, None]
    assert [run.see(sample(3, a=130)) for run in (rate, delta)] == [15, 30]


def test_rate_of_a_slow_collector_is_over_its_own_time() -> None:
    run = Run("rate(disk.x) + 0 * a")
    run.see(sample(0, "disk", disk__x=0), sample(0, a=1))
    run.see(sample(1, a=1))
    assert run.see(sample(2, "disk", disk__x=10), sample(2, a=1)) == 5
    assert run.see(sample(3, a=1)) == 5, "between its samples the rate stays"


def test_counters_that_fall_have_no_rate() -> None:
    run = Run("rate(a)")
    run.see(sample(1, a=100))
    assert run.see(sample(2, a=5)) is None
    assert run.see(sample(3, a=7)) == 2


def test_gauges_may_fall() -> None:
    run = Run("rate(process.rss_bytes)")
    run.see(sample(1, process__rss_bytes=100))
    assert run.see(sample(2, process__rss_bytes=40)) == -60


def test_a_restart_ends_all_comparisons() -> None:
    for text in ("rate(a)", "avg(a, 2)", "baseline(a)"):
        run = Run(text)
        for second in range(200):
            known = run.see(sample(second, a=1000 + second, Uptime=5000 + second))
        assert known is not None, text
        # More than before: the counter itself does not give it away.
        assert run.see(sample(200, a=9000, Uptime=1)) is None, text


def test_windows() -> None:
    runs = {name: Run(f"{name}(a, 4)") for name in ("avg", "max", "min")}
    seen = {
        name: [run.see(sample(second, a=v)) for second, v in enumerate((9, 1, 2, 3, 4))]
        for name, run in runs.items()
    }
    assert seen["max"] == [None, None, 9, 9, 4]
    assert seen["min"] == [None, None, 1, 1, 1]
    assert seen["avg"] == [None, None, 4, 3.75, 2.5]


def test_a_window_stays_small() -> None:
    run = Run("max(a, 3600)")
    for second in range(2 * 3600):
        latest = run.see(sample(second, a=-second))
    assert latest == pytest.approx(-3600, abs=6), "a slot of six seconds leaves as a whole"


def test_states() -> None:
    values = {
        "processlist.state.Waiting for table metadata lock": 3.0,
        "processlist.state.Waiting for schema metadata lock": 2.0,
        "processlist.state.Opening tables": 1.0,
        "processlist.running": 6.0,
    }
    seen = Sample("processlist", NS, NS, values=values)
    assert Run('state("Waiting for * metadata lock")').see(seen) == 5
    assert Run('state("opening table*")').see(seen) == 1
    assert Run('state("Opening")').see(seen) == 0, "the whole of it"
    assert Run('state("a.*|O*")').see(seen) == 0, "no regular expression"
    assert Run('state("*") - processlist.running').see(seen) == 0
    failed = Sample("processlist", NS, NS, error="late")
    assert Run('state("Opening")').see(failed) is None


def test_no_answer_grows_and_ends() -> None:
    run = Run("heartbeat.unanswered_ms")
    assert run.see(sample(1, "heartbeat", heartbeat__ms=2)) == 0
    owed = {"heartbeat.unanswered_ms": 1500.0}
    assert run.see(Sample("heartbeat", 2 * NS, 2 * NS, owed, error="no answer")) == 1500
    assert run.see(sample(3, "heartbeat", heartbeat__ms=2)) == 0


def test_names_are_in_the_order_of_the_text() -> None:
    found = names(parse('b + rate(a) * b + state("x") - `disk.dm-0.util` - waits.row-lock.max_ms'))
    assert [getattr(name, "name", None) or getattr(name, "pattern", "") for name in found] == [
        "b",
        "a",
        "x",
        "disk.dm-0.util",
        "waits.row-lock.max_ms",
    ]


def test_conditions() -> None:
    assert all(is_condition(parse(text)) for text in ("a > 1", "not a", "a and b", "(a or b)"))
    assert not any(is_condition(parse(text)) for text in ("a", "-a", "a + (b > 1)", "rate(a)"))


def test_waits_of_kinds_with_a_hyphen_and_differences() -> None:
    assert names(parse("waits.mutex.max_ms-a")) == (Name("waits.mutex.max_ms"), Name("a"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "unexpected end: a number"),
        ("   ", "unexpected end: a number"),
        ("a +", "unexpected end: a number"),
        ("a b", "unexpected 'b'"),
        ("(a", "'\\)' is missing"),
        ("a)", "unexpected '\\)'"),
        ("1 < a < 3", "join comparisons with 'and'"),
        ("a $ b", "not part of an expression"),
        ("a; import os", "not part of an expression"),
        ("__import__(os)", "no function '__import__'"),
        ("rats(a)", "no function 'rats'; known functions are rate"),
        ("rate()", "a number or a name is missing"),
        ("rate(a, b)", "'rate' with 2 arguments: write rate\\(x\\)"),
        ("avg(a)", "'avg' with 1 arguments: write avg\\(x, seconds\\)"),
        ("avg(a, b)", "needs a number of seconds"),
        ("avg(a, 0)", "needs a number of seconds"),
        ("max(a, 100000)", "at most 3600"),
        ("state(a)", "needs a text"),
        ('state("")', "needs a text"),
        ('"text"', "a number or a name is missing"),
        ("and", "a number or a name is missing"),
        ("os.system", "names begin with accept"),
        ("a + " * 600 + "a", "longer than"),
        ("1+" * 220 + "1", "more than 200 parts"),
        ("(" * 60 + "a" + ")" * 60, "deeper than"),
        ("-" * 60 + "a", "deeper than"),
        ("not " * 60 + "a", "deeper than"),
        ("a ! b", "not part of an expression"),
    ],
)
def test_mistakes(text: str, complaint: str) -> None:
    with pytest.raises(ExpressionError, match=complaint):
        parse(text)


@given(st.text(max_size=200))
def test_any_text_is_an_expression_or_a_mistake(text: str) -> None:
    check(text, [1.0, 2.0])


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "psi.x", "0", "3.5", 'state("x*")']),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "and", "or"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(st.sampled_from(["rate", "delta", "baseline", "-", "not"]), inner).map(
            lambda parts: f"{parts[0]} ({parts[1]})"
        ),
        st.tuples(st.sampled_from(["avg", "max", "min"]), inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, 3)"
        ),
    ),
    max_leaves=12,
)


@given(EXPRESSIONS, st.lists(st.floats(), max_size=12))
def test_expressions_have_finite_values_or_none(text: str, values: list[float]) -> None:
    if "not" not in text:
        parse(text)
    check(text, values)


def check(text: str, values: list[float]) -> None:
    try:
        run = Run(text)
    except ExpressionError:
        return
    for second, one in enumerate(values):
        result = run.see(sample(second, a=one), sample(second, "psi", psi__x=one))
        assert result is None or math.isfinite(result)

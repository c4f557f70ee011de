# SPDX-License-Identifier: Apache-2.0
"""Durations and sizes as people write them."""

from __future__ import annotations

import argparse
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base import quantities, times
from stallscope.commands import _numbers, _store


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("500ms", 0.5), ("1.5 s", 1.5), ("2h", 7200), ("1d", 86_400), (".5s", 0.5),
     ("7", 7), ("3min", 180), ("1w", 604_800), ("20us", 2e-5), (" 4s ", 4), ("9sec", 9)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert quantities.duration(text) == pytest.approx(seconds)


def test_a_bare_number_has_the_unit_of_its_option() -> None:
    assert quantities.duration("250", "ms") == pytest.approx(0.25)
    assert quantities.size("3", "m") == 3 << 20
    assert quantities.size("3") == 3
    assert quantities.size("3B", "m") == 3, "a unit of bytes is no bare number"


@pytest.mark.parametrize(
    ("text", "count"),
    [("500", 500), ("10k", 10_240), ("1.5G", 3 << 29), ("2 MiB", 2 << 20), ("1t", 1 << 40),
     ("64KB", 65_536)],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert quantities.size(text) == count


@pytest.mark.parametrize("text", ["", "m", "-5m", "5 minutes", "1e9", "5mm", "nan", "٣s", "1..5s"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        quantities.duration(text)
    with pytest.raises(ValueError, match="not a size"):
        quantities.size(text)


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_an_error(text: str) -> None:
    for parse in (quantities.duration, quantities.size):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10ms", "10"), ("fsync=2s", "fsync=2000"), ("1.5", "1.5"), ("mutex=.5ms", "mutex=0.5")],
)
def test_a_threshold_is_passed_on_in_milliseconds(text: str, expected: str) -> None:
    assert _numbers.threshold(text) == expected


@pytest.mark.parametrize("text", ["x=5", "fsync=", "fsync=-1", "2h"])
def test_no_threshold(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="10ms"):
        _numbers.threshold(text)


def test_options_take_units() -> None:
    assert _numbers.seconds("500ms") == pytest.approx(0.5)
    assert _numbers.milliseconds("2s") == 2000
    assert _numbers.milliseconds("30") == 30
    assert _store.days("12h") == pytest.approx(0.5)
    assert _store.byte_count("500") == 500 << 20
    assert _store.byte_count("10G") == 10 << 30
    for wrong in ("0", "0.5ms", "2h", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="whole milliseconds"):
            _numbers.milliseconds(wrong)


def test_since_takes_the_same_durations() -> None:
    now = 10**18
    assert times.since("1.5h", now) == now - 5400 * 10**9
    assert times.since("500ms", now) == now - 5 * 10**8
    assert times.since("20261121", now) != now - 20_261_121 * 10**9, "a day"
    assert times.since("2026-11-21T14:50:00Z", now) == 1_795_272_600 * 10**9

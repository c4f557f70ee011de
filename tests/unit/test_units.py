# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.reporters import units


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0"),
        (1e-6, "1 ns"),
        (0.0005, "500 ns"),
        (0.012, "12 µs"),
        (0.9996, "1 ms"),
        (1.24, "1.24 ms"),
        (12.44, "12.4 ms"),
        (99.96, "100 ms"),
        (812.4, "812 ms"),
        (999.7, "1 s"),
        (1240, "1.24 s"),
        (61_250, "61.2 s"),
        (599_000, "599 s"),
        (600_000, "10 min"),
        (4e7, "11.1 h"),
        (9e8, "10 d"),
        (1e15, ">99999 d"),
    ],
)
def test_durations(ms: float, text: str) -> None:
    assert units.duration(ms) == text


@pytest.mark.parametrize(
    ("count", "whole", "of_bytes"),
    [
        (0, "0", "0 B"),
        (1023, "1023", "1023 B"),
        (1024, "1024", "1 KiB"),
        (9_999_999, "9999999", "9.54 MiB"),
        (10_000_000, "10M", "9.54 MiB"),
        (2**63, "9223P", "8192 PiB"),
    ],
)
def test_counts_and_sizes(count: int, whole: str, of_bytes: str) -> None:
    assert units.number(count) == whole
    assert units.size(count) == of_bytes


@given(st.floats(0, 1e15), st.integers(0, 2**63))
def test_columns_hold_them(ms: float, count: int) -> None:
    assert 1 <= len(units.duration(ms)) <= 8
    assert 1 <= len(units.number(count)) <= 8
    assert 1 <= len(units.size(count)) <= 8


def bucket(power: int, count: int) -> tuple[int, int, int]:
    return (1 << power, (1 << (power + 1)) - 1, count)


def test_columns_of_a_histogram() -> None:
    """Each power of two is in one column, and the columns are what the legend says."""
    columns = [units.bars((bucket(power, 1),)).index("█") for power in range(40)]
    assert columns == sorted(columns)
    assert columns[0] == 0
    assert columns[-1] == units.COLUMNS - 1
    firsts_ms = [(1 << columns.index(column)) / 1e6 for column in range(1, units.COLUMNS)]
    recorded = [0.008, 0.066, 0.5, 4, 34, 300, 2000]
    assert units.LEGEND == "below 8 µs, 66 µs, 0.5 ms, 4 ms, 34 ms, 0.3 s, 2 s, longer"
    for first, end in zip(firsts_ms, recorded, strict=True):
        assert first == pytest.approx(end, rel=0.13)


def test_what_occurred_at_all_shows() -> None:
    assert units.bars((bucket(10, 1_000_000), bucket(33, 1))) == "█······▁"
    assert units.bars((bucket(10, 8), bucket(20, 4)), blocks=False) == "8..4...."


@given(st.lists(st.tuples(st.integers(0), st.integers(0), st.integers(0)), max_size=50))
def test_any_histogram_is_eight_columns(rows: list[tuple[int, int, int]]) -> None:
    assert len(units.bars(tuple(rows))) == units.COLUMNS

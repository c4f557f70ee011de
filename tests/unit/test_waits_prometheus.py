# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus reads them: by its own checker, and by the grammar of its text format."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stallscope.model.waitlines import ClassWaits, Key, KindWaits, WaitLine
from stallscope.reporters.prometheus import MAX_LOCKS, Metrics
from tests.support.servers import PATIENCE
from tests.unit.metricspages import text_of
from tests.unit.waitsamples import line_of

LABELS = {"server": "mysqld", "datadir": "/var/lib/mysql"}

Series = dict[str, dict[frozenset[tuple[str, str]], float]]


def parse(text: str) -> Series:
    """Return the values of each name by their labels."""
    series: Series = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".")
        for one in family.samples:
            of_name = series.setdefault(one.name, {})
            labels = frozenset(one.labels.items())
            assert labels not in of_name, one
            of_name[labels] = one.value
    return series


def of(series: Series, name: str, **labels: str) -> float:
    """Return the one value with these labels, among others."""
    (value,) = [
        value
        for of_sample, value in series[f"stallscope_{name}"].items()
        if labels.items() <= of_sample
    ]
    return value


def written(*lines: WaitLine) -> str:
    metrics = Metrics(LABELS)
    for line in lines:
        metrics.add(line)
    return text_of(metrics.families())


def line(
    kinds: dict[str, KindWaits] | None = None,
    keys: tuple[Key, ...] = (),
    classes: tuple[ClassWaits, ...] | None = None,
) -> WaitLine:
    return WaitLine("stallscope.waits/1", 0, 1, kinds or {}, keys, {"rate": 0}, classes=classes)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("names", [("stalled",), ("quiet",), ("stalled", "quiet", "hostile")])
def test_promtool_finds_nothing_wrong(names: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=written(*map(line_of, names)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("names", [("stalled",), ("quiet",), ("stalled", "quiet", "hostile")])
def test_each_value_has_the_labels_of_its_server(names: tuple[str, ...]) -> None:
    series = parse(written(*map(line_of, names)))
    for of_name in series.values():
        for labels in of_name:
            assert LABELS.items() <= labels
    assert of(series, "watched_seconds_total") == len(names)


def test_nothing_was_watched_yet() -> None:
    labels = frozenset(LABELS.items())
    assert parse(written()) == {"stallscope_watched_seconds_total": {labels: 0}}


def test_base_units_and_sums() -> None:
    series = parse(written(line_of("stalled"), line_of("stalled")))
    assert of(series, "wait_duration_seconds_sum", kind="fsync") == pytest.approx(2 * 3.21025)
    assert of(series, "wait_duration_seconds_count", kind="fsync") == 2 * 812
    assert of(series, "wait_over_threshold_total", kind="mutex") == 6
    assert of(series, "wait_bytes_total", kind="read") == 2 * 1966637056
    assert of(series, "waits_in_flight", kind="mutex") == 187
    assert of(series, "wait_in_flight_longest_seconds", kind="mutex") == pytest.approx(0.8124)
    assert of(series, "file_wait_duration_seconds_sum", kind="fsync", **{"class": "redo"}) == (
        pytest.approx(2 * 3.20025)
    )
    assert of(series, "lock_wait_seconds_total", lock="LOCK_open") == pytest.approx(2 * 1.2401)
    assert of(series, "wait_lost_total", cause="ring-full") == 12  # since the start
    assert of(series, "wait_program_up", program="uprobes") == 0


def buckets(series: Series, kind: str) -> dict[float, float]:
    return {
        float(dict(labels)["le"]): value
        for labels, value in series["stallscope_wait_duration_seconds_bucket"].items()
        if ("kind", kind) in labels
    }


def test_histograms_are_cumulative_and_hold_all() -> None:
    series = parse(written(line_of("stalled")))
    for kind in ("mutex", "fsync", "cond", "fallocate"):
        counts = buckets(series, kind)
        assert list(counts) == sorted(counts)
        assert list(counts.values()) == sorted(counts.values())
        assert list(counts)[-1] == float("inf")
        assert counts[float("inf")] == of(series, "wait_duration_seconds_count", kind=kind)


def test_a_bucket_counts_what_is_not_longer() -> None:
    for power in range(40):
        row = (1 << power, (1 << (power + 1)) - 1, 5)
        counts = buckets(
            parse(written(line({"mutex": KindWaits(5, 1, 1, histogram=(row,))}))), "mutex"
        )
        for bound, count in counts.items():
            assert count in (0, 5)
            if count:
                assert row[1] <= bound * 1e9
            else:
                assert row[1] > bound * 1e9


def test_waits_that_are_in_no_histogram_are_counted() -> None:
    series = parse(written(line({"mutex": KindWaits(7, 1, 1, histogram=((1, 1, 2),))})))
    assert of(series, "wait_duration_seconds_count", kind="mutex") == 7
    assert buckets(series, "mutex")[float("inf")] == 7
    assert max(count for bound, count in buckets(series, "mutex").items() if bound < 100) == 2


def test_counters_never_go_back() -> None:
    metrics = Metrics(LABELS)
    before: Series = {}
    for name in ("stalled", "quiet", "stalled", "hostile", "quiet"):
        metrics.add(line_of(name))
        now = parse(text_of(metrics.families()))
        for of_name in before:
            if of_name.endswith(("_total", "_bucket", "_sum", "_count")):
                for labels, value in before[of_name].items():
                    assert now[of_name][labels] >= value
        before = now


def test_what_goes_on_is_left_out_when_nobody_polls_any_more() -> None:
    metrics = Metrics(LABELS)
    metrics.add(line_of("stalled"))
    metrics.finish(line_of("final"))
    series = parse(text_of(metrics.families()))
    assert not [name for name in series if "in_flight" in name]
    assert of(series, "lock_waits_total", lock="LOCK_open") == 28


def test_the_end_is_the_totals() -> None:
    """They hold the intervals, and what came after the last one."""
    metrics = Metrics(LABELS)
    metrics.add(line_of("stalled"))
    final = line_of("final")
    mutex = msgspec.structs.replace(final.kinds["mutex"], count=40)
    metrics.finish(msgspec.structs.replace(final, kinds={**final.kinds, "mutex": mutex}))
    series = parse(text_of(metrics.families()))
    assert of(series, "wait_duration_seconds_count", kind="mutex") == 40
    assert of(series, "wait_duration_seconds_count", kind="fsync") == 812
    assert of(series, "watched_seconds_total") == 61.25


def test_a_lock_that_was_identified_late_takes_nothing_back() -> None:
    """Its waits stay where they were counted, and are where they belong."""
    row = ((1024, 2047, 9),)
    metrics = Metrics(LABELS)
    metrics.add(line({"futex": KindWaits(9, 9.0, 1.0, histogram=row)}))
    metrics.finish(
        line({"mutex": KindWaits(9, 9.0, 1.0, histogram=row), "futex": KindWaits(0, 0, 0)})
    )
    series = parse(text_of(metrics.families()))
    assert of(series, "wait_duration_seconds_count", kind="futex") == 9
    assert of(series, "wait_duration_seconds_count", kind="mutex") == 9


def test_labels_are_bounded() -> None:
    """No addresses, no paths, no names that a process makes up; and never more than so many."""
    names = [
        "0x7f31c0de",
        "/var/lib/mysql/t.ibd",
        'evil"\n{',
        "LOCK open",
        *(f"L{i}" for i in range(500)),
    ]
    keys = tuple(Key(1, 1.0, 1.0, kind="mutex", name=name) for name in names)
    keys += (Key(1, 1.0, 1.0, kind="read", name="named_like_a_lock"),)
    text = written(line(keys=keys))
    locks = {dict(labels)["lock"] for labels in parse(text)["stallscope_lock_waits_total"]}
    assert locks == {f"L{i}" for i in range(MAX_LOCKS)}
    assert "0x7f31c0de" not in text
    assert "named_like_a_lock" not in text


def test_no_class_of_files_is_made_up() -> None:
    series = parse(written(line({"read": KindWaits(3, 1, 1)})))
    assert not [name for name in series if "file_wait" in name]
    changed = msgspec.structs.replace(
        line(), classes=(ClassWaits(3, 1.0, 1.0, kind="read", file_class="data"),)
    )
    series = parse(written(changed))
    assert of(series, "file_wait_duration_seconds_count", **{"class": "data"}) == 3

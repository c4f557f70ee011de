# SPDX-License-Identifier: Apache-2.0
"""How the accuracy benchmark counts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stallscope.analyzers import catalog, naming
from stallscope.analyzers.analysis import Finding, Signs
from stallscope.analyzers.naming import Fit
from tests.bench.accuracy import binned, judge
from tests.bench.fitting import Observed, fit, left_out
from tests.bench.labelled import Labelled


def finding(signature: str | None, confidence: float) -> Finding:
    return Finding(
        signature=signature,
        title="t",
        confidence=confidence,
        threads=3,
        blocker=None,
        waiters=(),
        locks=(),
        chain=(),
        evidence=(),
    )


@pytest.mark.parametrize(
    ("expect", "top", "result"),
    [
        (["a"], ("a", 0.5), "right"),
        (["b", "a"], ("a", 0.9), "right"),
        (["a"], ("a", 0.45), "missed"),
        (["a"], ("c", 0.9), "wrong"),
        (["a"], ("c", 0.4), "missed"),
        (["a"], (None, 0.49), "missed"),
        (["a"], None, "missed"),
        (["?", "a"], None, "quiet"),
        (["?", "a"], ("c", 0.3), "quiet"),
        (["?", "a"], ("c", 0.6), "wrong"),
        ([], None, "quiet"),
        ([], ("a", 0.49), "quiet"),
        ([], ("b", 0.5), "false finding"),
    ],
)
def test_judge(expect: list[str], top: tuple[str | None, float] | None, result: str) -> None:
    got = judge(expect, None if top is None else finding(*top), "dump")
    assert got.result == result
    assert got.healthy == (not expect)


def test_bins_compare_confidence_with_what_was_right() -> None:
    outcomes = [judge(["a"], finding("a" if number else "b", 0.8), "dump") for number in range(10)]
    count, mean, right = binned(outcomes, 0.7, 0.9)
    assert (count, right) == (10, 0.9)
    assert mean == pytest.approx(0.8)
    assert binned(outcomes, 0.9, 1.01) == (0, 0.0, 0.0)


def observed(number: int, *, share: float, right: bool) -> Observed:
    case = Labelled(str(number), Path("-"), ("a",), f"source {number % 40}", public=True)
    found = msgspec.structs.replace(
        finding("a" if right else "b", 0.5), signs=Signs(share=share, few=1.0 - share)
    )
    return Observed(case, "gdb", (found,))


def test_the_fit_finds_what_makes_names_right(signatures: catalog.Catalog) -> None:
    start = Fit(intercept=0.0, weights={}, most=1.0)
    seen = [observed(n, share=float(n % 2), right=n % 2 == 1 or n % 10 == 0) for n in range(400)]
    model = fit(seen, start, signatures)
    assert model.confidence(Signs(share=1.0)) > 0.9
    assert model.confidence(Signs(few=1.0)) == pytest.approx(0.2, abs=0.05)
    for away, items in left_out(seen, start, signatures):
        assert items
        assert away.confidence(Signs(share=1.0)) > 0.9


def test_signs_never_weigh_in_the_wrong_direction(signatures: catalog.Catalog) -> None:
    """That few threads are right by chance in the data is no reason to be surer of them."""
    start = Fit(intercept=0.0, weights={}, most=1.0)
    seen = [observed(n, share=float(n % 2), right=n % 2 == 0) for n in range(100)]
    weights = fit(seen, start, signatures).weights
    assert weights.get("share", 0.0) >= 0.0 >= weights.get("few", 0.0)


def test_the_shipped_fit_knows_its_signs() -> None:
    shipped = naming.load()
    assert set(shipped.weights) <= set(naming.SIGNS)
    assert shipped.fitted

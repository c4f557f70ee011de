# SPDX-License-Identifier: Apache-2.0
"""How the accuracy benchmark counts."""

from __future__ import annotations

import pytest

from stallscope.analyzers.analysis import Finding
from tests.bench.accuracy import judge


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
    ("expect", "findings", "result"),
    [
        (["a"], [("a", 0.45)], "right"),
        (["b", "a"], [("a", 0.9), ("c", 0.8)], "right"),
        (["a"], [("c", 0.9), ("a", 0.8)], "wrong"),
        (["a"], [(None, 0.6)], "wrong"),
        (["a"], [], "missed"),
        (["?", "a"], [], "quiet"),
        ([], [], "quiet"),
        ([], [("a", 0.49)], "quiet"),
        ([], [("a", 0.3), ("b", 0.5)], "false finding"),
    ],
)
def test_judge(expect: list[str], findings: list[tuple[str | None, float]], result: str) -> None:
    got = judge(expect, [finding(*item) for item in findings], "dump")
    assert got.result == result
    assert got.healthy == (not expect)

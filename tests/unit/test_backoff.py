# SPDX-License-Identifier: Apache-2.0
"""Pauses: each longer than the one before, up to a limit, and different on each host."""

from __future__ import annotations

import random

from stallscope.base.backoff import Backoff

__all__: list[str] = []


def test_pauses_grow_to_a_limit_and_begin_again() -> None:
    backoff = Backoff(0.5, 4.0, spread=0.0)
    assert [backoff.next() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert backoff.failed == 6
    backoff.reset()
    assert backoff.next() == 0.5
    endless = Backoff(1.0, 300.0, spread=0.0)
    assert max(endless.next() for _ in range(10_000)) == 300.0


def test_hosts_do_not_come_at_the_same_moment() -> None:
    pauses = [Backoff(10.0, 10.0, 0.5, random.Random(seed)).next() for seed in range(300)]
    assert min(pauses) >= 5.0
    assert max(pauses) <= 10.0
    for low in range(5, 10):
        assert 30 < sum(low <= one < low + 1 for one in pauses) < 100, "they are spread out"

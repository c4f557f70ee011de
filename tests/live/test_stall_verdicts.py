# SPDX-License-Identifier: Apache-2.0
"""One burst of real stalls, each on a server of its own, as ``./scripts/bench verdict`` takes many.

A few of each kind of server, whose waits last: what only most bursts show is a figure of the bench.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bench.verdict_stalls import measure

pytestmark = pytest.mark.nightly

NEEDED = {
    "row-lock-myrocks": ("myrocks",),
    "row-lock-postgres": ("postgres",),
    "relation-lock-postgres17": ("postgres17",),
    "autoinc-lock-mysql97": ("mysql97",),
    "autoinc-lock-mariadb": ("mariadb",),
    "user-level-lock-mariadb": ("mariadb",),
    "table-flush-wait-mysql97": ("mysql97",),
    "myisam-table-lock": ("mysql55",),
    "drop-table": ("mysql55", "freeze"),
    "wal-sync-postgres17": ("postgres17", "freeze"),
    "aria-log-sync": ("mariadb114", "freeze"),
    "cpu-quota-mariadb": ("mariadb", "cgroups"),
    "cpu-quota-mysql97": ("mysql97", "cgroups"),
    "full-binlog-mariadb": ("mariadb",),
    "full-binlog-mysql97": ("mysql97",),
    "full-data-mariadb": ("mariadb",),
}
"""Stalls, and what they need here."""
FIXED = {
    "row-lock-postgres17-fixed": ("postgres17",),
    "user-level-lock-mysql97-fixed": ("mysql97",),
    "row-lock-myrocks-fixed": ("myrocks",),
    "cpu-quota-mariadb-fixed": ("mariadb", "cgroups"),
    "full-binlog-mysql97-fixed": ("mysql97",),
}


@pytest.mark.parametrize("name", NEEDED)
def test_one_burst_names_the_stall_and_its_blocker(require: Callable[..., None], name: str) -> None:
    require("root", "bpf", *NEEDED[name])
    tally = measure(name, 1)
    assert tally.right == 1, tally.said
    assert tally.blockers == tally.has_blocker


@pytest.mark.parametrize("name", FIXED)
def test_one_burst_of_the_fixed_twin_finds_nothing(require: Callable[..., None], name: str) -> None:
    require("root", "bpf", *FIXED[name])
    tally = measure(name, 1)
    assert tally.right == 1, tally.said

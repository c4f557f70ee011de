# SPDX-License-Identifier: Apache-2.0
"""How the benchmark counts whether live stalls have one verdict from each tool."""

from __future__ import annotations

import pytest

from tests.bench.own_dumps import FROZEN, HELD, TURNS, Round, table
from tests.support.dumps import Verdict

LOCKED = Verdict(True, "metadata-lock", 0.9, 20)
UNSURE = Verdict(True, "metadata-lock", 0.5, 18)
UNKNOWN = Verdict(True, None, 0.6, 20)
NOTHING = Verdict(False)


def round_of(*verdicts: Verdict, stall: str = "metadata-lock", how: str = TURNS) -> Round:
    tools = ("own capture", "eu-stack", "gdb")
    return Round(stall, "mariadb", how, dict(zip(tools, verdicts, strict=True)))


@pytest.mark.parametrize(
    ("verdicts", "same"),
    [
        ((LOCKED, UNSURE, LOCKED), True),
        ((UNKNOWN, UNKNOWN, UNKNOWN), True),
        ((LOCKED, LOCKED, UNKNOWN), False),
        ((LOCKED, NOTHING, LOCKED), False),
        ((UNKNOWN, NOTHING, UNKNOWN), False),
        ((NOTHING, NOTHING, NOTHING), False),
    ],
)
def test_one_stall_is_found_by_all(verdicts: tuple[Verdict, ...], same: bool) -> None:
    assert round_of(*verdicts).same is same


def test_moments_that_differ_count_by_themselves() -> None:
    alike = (LOCKED, LOCKED, LOCKED)
    different = (LOCKED, NOTHING, UNKNOWN)
    section = table(
        [
            round_of(*alike),
            round_of(*alike, how=FROZEN),
            round_of(*alike, stall="index-lock"),
            round_of(*different, stall="index-lock"),
            round_of(*alike, stall="index-lock", how=HELD),
        ],
        ["a stall on a server: not here"],
    )
    assert section.goals == (
        ("of one moment, 3 of 3 have one verdict from all tools; goal all", True),
    )
    assert "1 of 2 have one verdict" in section.notes[0]
    assert [row.cells["same"] for row in section.rows] == ["yes", "yes", "yes", "NO", "yes"]
    assert [row.name.rpartition(" ")[2] for row in section.rows[2:]] == ["1", "2", "1"]
    assert section.left_out == ("a stall on a server: not here",)


def test_a_held_moment_with_two_verdicts_is_a_miss() -> None:
    held = round_of(LOCKED, LOCKED, NOTHING, stall="index-lock", how=HELD)
    assert [met for _, met in table([held], []).goals] == [False]

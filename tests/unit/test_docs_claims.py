# SPDX-License-Identifier: Apache-2.0
"""Counts that README and CHANGELOG claim are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from stallscope.analyzers import catalog
from tests.bench.__main__ import BENCHES
from tests.support.stall import STALLS

__all__: list[str] = []

ROOT = Path(__file__).resolve().parents[2]
FIXED = "-fixed"


def test_signatures_and_those_that_are_tried_live() -> None:
    found = re.search(
        r"(\d+) signatures \(`stallscope version --json`\), of which `./scripts/stall` makes (\d+)",
        (ROOT / "CHANGELOG.md").read_text(),
    )
    assert found is not None
    known = {signature.id for signature in catalog.load().signatures}
    tried = {
        name
        for stall, made in STALLS.items()
        if not stall.endswith(FIXED)
        for name in made.expected.signatures
    }
    assert (int(found[1]), int(found[2])) == (len(known), len(tried & known))


def test_stalls_and_their_twins() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(r"`./scripts/stall`: (\d+) stalls, each with its fixed twin", text)
    assert found is not None
    stalls = {name for name in STALLS if not name.endswith(FIXED)}
    assert {f"{name}{FIXED}" for name in stalls} == STALLS.keys() - stalls
    assert int(found[1]) == len(stalls)


def test_the_commands_of_claims_exist() -> None:
    """Each claim of the README's table names a benchmark, and a page that has its result."""
    rows = re.findall(
        r"^\| [^|]+ \| `\./scripts/bench (\S+)[^`]*` \| \[[^]]+\]\(([^)#]+)#([^)]+)\) \|$",
        (ROOT / "README.md").read_text(),
        re.M,
    )
    assert len(rows) >= 6
    for bench, page, heading in rows:
        assert bench in BENCHES
        text = (ROOT / page).read_text()
        headings = [
            re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert heading in headings
        assert f"./scripts/bench {bench}" in text

# SPDX-License-Identifier: Apache-2.0
"""Stacks in which a function has the name of another version: the verdict stays the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.names import bare, normalize
from tests.unit import test_analyzers_signatures as generations
from tests.unit.scenes import Scenery
from tests.unit.signature_scenes import SCENES

BENCH = Path(__file__).parents[1] / "bench"
OF_MYSQL = [
    (rename["from"], other["name"])
    for rename in tomllib.loads((BENCH / "renames.toml").read_text())["rename"]
    for other in rename["to"]
]
PAIRS = [*OF_MYSQL, *((new, old) for old, new in OF_MYSQL)]
PAIRS_OF_OTHERS = [
    (rename["name"], other)
    for rename in tomllib.loads((BENCH / "renames_other.toml").read_text())["rename"]
    for other in rename["others"]
]
"""Of PostgreSQL, MongoDB, RocksDB and libc."""
OTHERS = ("postgres", "rocksdb", "myrocks", "mongodb", "wiredtiger", "tokudb", "pbxt")
STACKS = {s.signature: (s.waiters, s.holder) for s in SCENES} | {
    c.name: (c.waiters, c.holder or "") for c in generations.CASES
}


def put(stack: str, old: str, new: str) -> str:
    names = stack.split(", ")
    return ", ".join(
        new if old == name or bare(normalize(name)) == bare(old) else name for name in names
    )


def verdict(signatures: catalog.Catalog, waiters: tuple[str, ...], holder: str) -> str | None:
    scenery = Scenery()
    generations.background(scenery)
    for stack in waiters:
        scenery.add(stack, times=12, state="?")
    if holder:
        scenery.add(holder, state="?")
    found = engine.analyze(scenery.capture(), signatures).findings
    return found[0].signature if found else None


@pytest.mark.parametrize("name", STACKS)
def test_the_verdict_stays(name: str, signatures: catalog.Catalog) -> None:
    waiters, holder = STACKS[name]
    expected = verdict(signatures, waiters, holder)
    assert expected
    is_other = name.startswith(OTHERS)
    tried = 0
    for old, new in [*PAIRS, *(PAIRS_OF_OTHERS if is_other else ())]:
        renamed = tuple(put(stack, old, new) for stack in waiters)
        held = put(holder, old, new)
        if (renamed, held) != (waiters, holder):
            tried += 1
            assert verdict(signatures, renamed, held) == expected, (old, new)
    assert tried or not is_other

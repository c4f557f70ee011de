# SPDX-License-Identifier: Apache-2.0
"""Stacks of PostgreSQL, MongoDB, RocksDB and libc with names of other versions: same verdict."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.names import bare, normalize
from tests.unit.scenes import Scenery
from tests.unit.signature_scenes import SCENES, Scene

FILE = Path(__file__).parents[1] / "bench" / "renames_other.toml"
RENAMES: dict[str, list[str]] = {
    entry["name"]: entry["others"]
    for entry in tomllib.loads(FILE.read_text(encoding="utf-8"))["rename"]
}
FAMILIES = ("postgres", "rocksdb", "myrocks", "mongodb", "wiredtiger", "tokudb", "pbxt")


def put(stack: str, old: str, new: str) -> str:
    return ", ".join(
        new if old in (name, bare(normalize(name))) else name for name in stack.split(", ")
    )


def verdict(signatures: catalog.Catalog, waiters: tuple[str, ...], holder: str) -> str | None:
    scenery = Scenery()
    for stack in waiters:
        scenery.add(stack, times=12, state="?")
    if holder:
        scenery.add(holder, state="?")
    found = engine.analyze(scenery.capture(), signatures).findings
    return found[0].signature if found else None


def test_there_are_enough_and_each_is_another_name() -> None:
    assert len(RENAMES) >= 50
    for name, others in RENAMES.items():
        assert others
        assert name not in others


@pytest.mark.parametrize(
    "scene",
    [scene for scene in SCENES if scene.signature.startswith(FAMILIES)],
    ids=lambda scene: scene.signature,
)
def test_the_verdict_stays(scene: Scene, signatures: catalog.Catalog) -> None:
    expected = verdict(signatures, scene.waiters, scene.holder)
    tried = 0
    for name, others in RENAMES.items():
        for other in others:
            renamed = tuple(put(stack, name, other) for stack in scene.waiters)
            held = put(scene.holder, name, other)
            if (renamed, held) != (scene.waiters, scene.holder):
                tried += 1
                assert verdict(signatures, renamed, held) == expected, (name, other)
    assert tried

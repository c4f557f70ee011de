# SPDX-License-Identifier: Apache-2.0
"""Each signature of the catalog: a scene of it, and a similar one that is not it."""

from __future__ import annotations

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis
from tests.unit.scenes import IDLE_SESSION, Scenery, blocker_of
from tests.unit.signature_scenes import SCENES, Scene

MANY = 12
STATUS_ONLY = {"innodb-semaphore-hang"}
"""Found in a server's report alone, not in stacks."""


def judge(signatures: catalog.Catalog, waiters: tuple[str, ...], holder: str) -> Analysis:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=9)
    for stack in waiters:
        scenery.add(stack, times=MANY, state="?")
    if holder:
        scenery.add(holder, state="?", tid=7)
    return engine.analyze(scenery.capture(), signatures)


def test_every_signature_has_a_scene(signatures: catalog.Catalog) -> None:
    there = {scene.signature for scene in SCENES} | STATUS_ONLY
    assert {s.id for s in signatures.signatures if not s.generic} == there


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.signature)
def test_scene(scene: Scene, signatures: catalog.Catalog) -> None:
    analysis = judge(signatures, scene.waiters, scene.holder)
    assert analysis.findings
    verdict = analysis.findings[0]
    assert verdict.signature == (scene.verdict or scene.signature)
    assert verdict.confidence >= 0.5
    assert verdict.threads >= MANY * len(scene.waiters)
    assert verdict.evidence
    if scene.holder:
        assert blocker_of(verdict).tid == 7


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.signature)
def test_what_is_similar(scene: Scene, signatures: catalog.Catalog) -> None:
    stack, other = scene.near
    assert other != scene.signature
    analysis = judge(signatures, (stack,), scene.near_holder)
    found = [f.signature for f in analysis.findings if f.confidence >= 0.5]
    assert found[:1] == ([other] if other else [])


OF_SEVERAL = {one.id for one in catalog.load().signatures if one.min_waiters > 1}
"""Signatures of more than one waiter. Of others nothing but the blocker ends the wait."""


@pytest.mark.parametrize(
    "scene",
    [scene for scene in SCENES if scene.signature in OF_SEVERAL],
    ids=lambda scene: scene.signature,
)
def test_one_thread_alone_is_no_sure_stall(scene: Scene, signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=9)
    scenery.add(scene.waiters[0], state="?")
    sure = [
        f.signature
        for f in engine.analyze(scenery.capture(), signatures).findings
        if f.confidence >= 0.5
    ]
    assert sure == []

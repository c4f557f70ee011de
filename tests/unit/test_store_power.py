# SPDX-License-Identifier: Apache-2.0
"""Whenever the power fails, what was announced is there afterwards, and nothing is torn."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from stallscope.store import Store
from tests.support.chance import SEED
from tests.unit.disks import Image, Recorder
from tests.unit.storelife import Said, check, fill, incident, life, memory_folder

pytestmark = pytest.mark.large


def _recorded(root: Path) -> tuple[Recorder, list[Said]]:
    """Record the life of an agent."""
    root.mkdir()
    said: list[Said] = []
    recorder = Recorder(root, random.Random(SEED), lambda: len(said))
    with recorder.recording():
        life(root / "store", 0, said.append)
    recorder.assert_nothing_was_missed()
    return recorder, said


def _check_images(recorder: Recorder, said: list[Said], folder: Path) -> int:
    """Check every image of every instant; return how many there were."""
    checked: dict[Image, int] = {}
    for confirmed, images in recorder.instants:
        for image in images:
            if checked.get(image) == confirmed:
                continue
            checked[image] = confirmed
            root = folder / str(len(checked))
            root.mkdir()
            image.restore(root)
            # What retention is about to remove may be gone already.
            going = [one for one in said if one[0] == "going"] if confirmed else []
            check(root / "store", said[:confirmed] + going)
            if len(checked) % 20 == 0:
                _live_on(root / "store", said[:confirmed] + going)
            shutil.rmtree(root)
    return len(checked)


def _live_on(dest: Path, said: list[Said]) -> None:
    """The next agent finds a store that it can go on with."""
    store = Store.open(dest)
    store.recover()
    check(dest, said)
    fill(store, 100, lambda _: None)
    check(dest, [*said, ("finished", incident(100).id, "")])


def test_power_fails_at_any_instant() -> None:
    with memory_folder() as folder:
        recorder, said = _recorded(folder / "real")
        assert recorder.synced > 100
        images = _check_images(recorder, said, folder)
    print(f"{len(recorder.instants)} instants, {images} images")
    assert images > len(recorder.instants)

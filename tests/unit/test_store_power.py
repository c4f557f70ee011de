# SPDX-License-Identifier: Apache-2.0
"""Whenever the power fails, what was announced is there afterwards, and nothing is torn."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.store import Store
from stallscope.store.appended import Appended
from tests.unit.disks import Image, Recorder
from tests.unit.storelife import Said, check, fill, incident, life, memory_folder

pytestmark = pytest.mark.slow


def _recorded(root: Path, seed: int) -> tuple[Recorder, list[Said]]:
    """Record the life of an agent."""
    root.mkdir()
    said: list[Said] = []
    recorder = Recorder(root, random.Random(seed), lambda: len(said))
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
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with memory_folder() as folder:
        recorder, said = _recorded(folder / "real", seed)
        assert recorder.synced > 100
        images = _check_images(recorder, said, folder)
    print(f"{len(recorder.instants)} instants, {images} images")
    assert images > len(recorder.instants)


def _without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomicfile, "sync_folder", lambda folder: None)


def _without_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    real = atomicfile._write_aside
    monkeypatch.setattr(
        atomicfile,
        "_write_aside",
        lambda aside, chunks, mode, sync: real(aside, chunks, mode, False),
    )


def _without_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: Appended, data: bytes) -> None:
        os.write(file._descriptor, data)

    monkeypatch.setattr(Appended, "_write", write)


@pytest.mark.parametrize("mistake", [_without_names, _without_contents, _without_tails])
def test_a_writer_that_does_not_sync_is_found_out(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """The test above can fail: each of the syncs is needed."""
    mistake(monkeypatch)
    with memory_folder() as folder:
        recorder, said = _recorded(folder / "real", 1)
        with pytest.raises((AssertionError, StallscopeError)):
            _check_images(recorder, said, folder)

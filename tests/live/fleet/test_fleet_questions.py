# SPDX-License-Identifier: Apache-2.0
"""The named questions: all engines give the same rows, of the same types, in the same order."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from stallscope.fleet import batch
from stallscope.fleet.engines.duckdbengine import DuckDBEngine
from stallscope.fleet.engines.folder import FolderDestination
from stallscope.fleet.questions.asking import QUESTIONS, Answer, Asked, ask
from tests.live.fleet.places import Place
from tests.support.fleet.questionanswers import ANSWERS
from tests.support.fleet.questionscenes import ASKED, NOW, scene
from tests.support.fleet.simulated import NEW_VERSION, OLD_VERSION, Fleet
from tests.support.servers.waiting import Late, wait_until

__all__: list[str] = []

SEED = 11
HOUR = 3_600_000


def of_folder(
    batches: list[batch.Batch], folder: Path, every: tuple[Asked, ...]
) -> dict[tuple[str, int], Answer]:
    """Return what DuckDB answers."""
    folder.mkdir()
    for one in batches:
        FolderDestination(folder).send(one)
    engine = DuckDBEngine(folder)
    try:
        return {
            (name, at): ask(engine, name, asked)
            for name in QUESTIONS
            for at, asked in enumerate(every)
        }
    finally:
        engine.close()


def _asked(place: Place, name: str, asked: Asked, wanted: Answer) -> Answer:
    """Return the answer, as soon as it is the wanted one: agents are in a Buffer table first, and
    replicas take a moment."""
    found: list[Answer] = []

    def is_wanted() -> bool:
        found.append(ask(place.engine, name, asked))
        return repr(found[-1]) == repr(wanted)

    with suppress(Late):
        wait_until(is_wanted, name, 30)
    return found[-1]


def compare(
    place: Place, batches: list[batch.Batch], folder: Path, every: tuple[Asked, ...]
) -> dict[tuple[str, int], Answer]:
    """Compare what two engines answer, and return it."""
    place.init()
    for one in batches:
        place.destination.send(one)
    wanted = of_folder(batches, folder, every)
    for (name, at), answer in wanted.items():
        found = _asked(place, name, every[at], answer)
        assert repr(found) == repr(answer), (SEED, name, at)
    return wanted


def test_scenes(place: Place, tmp_path: Path) -> None:
    """Revisions, duplicates, nulls and hostile texts; in three batches, one of them twice."""
    made = scene(SEED, 300)
    third = len(made.rows) // 3 + 1
    batches = [batch.make(made.rows[at : at + third]) for at in range(0, len(made.rows), third)]
    found = compare(place, [*batches, batches[0]], tmp_path / "folder", ASKED)
    for (name, at), answer in found.items():
        wanted = ANSWERS[name](made, ASKED[at])
        most = None if name == "hosts" else ASKED[at].limit
        assert repr(answer.rows) == repr(wanted[:most]), (SEED, name, at)


def test_a_simulated_fleet(place: Place, tmp_path: Path) -> None:
    fleet = Fleet(200, seed=SEED, until_ms=NOW, hours=24.0)
    batches = [fleet.stacks(), fleet.agents(), fleet.waits(NOW - HOUR)]
    batches += [made.batch for made in fleet.incidents(2000)]
    asked = Asked(fleet.since_ms, NOW, version=NEW_VERSION, against=OLD_VERSION)
    found = compare(place, batches, tmp_path / "folder", (asked,))
    empty = {name for (name, _), answer in found.items() if not answer.rows}
    assert empty <= {"now", "lost", "silent"}

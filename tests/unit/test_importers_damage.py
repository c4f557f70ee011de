# SPDX-License-Identifier: Apache-2.0
"""A dump that was damaged on its way has the finding that it had, or a weaker one with a warning.

``STALLSCOPE_DAMAGES`` is the number of random damages, ``STALLSCOPE_SEED`` their seed. 20,000 by
hand: ``STALLSCOPE_DAMAGES=20000 .venv/bin/python -P -m pytest -q -k random
tests/unit/test_importers_damage.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from stallscope.analyzers import catalog, engine, importers, waits
from stallscope.base.errors import StallscopeError
from tests.bench.labelled import public
from tests.support import damage
from tests.support.chance import SEED
from tests.unit import gdb_dumps

DATA = Path(__file__).parent.parent / "data"
COUNT = int(os.environ.get("STALLSCOPE_DAMAGES", "200"))
LARGEST = 400_000
"""Bytes of the dumps that are tried: larger ones say the same, and take seconds each."""
KNOWN = catalog.load()


class Seen(NamedTuple):
    """What is found in a dump. ``names``: the first finding of each capture that has one."""

    names: tuple[str, ...]
    confidence: float
    waiters: bool
    unreadable: int
    warned: bool
    threads: int


def dumps() -> Iterator[tuple[str, bytes]]:
    """Yield dumps with stacks or waits: those of the project, and public ones where there are."""
    for name in gdb_dumps.NAMES:
        yield name, gdb_dumps.dump(name)
    for name in ("eu-stack-*", "gdb-*", "innodb-*", "lldb", "pt-pmp", "quickstack", "coredumpctl"):
        for path in sorted((DATA / "importers").glob(f"{name}.in")):
            yield path.stem, path.read_bytes()
    for case in public():
        yield case.name, case.read()


DUMPS = {name: data for name, data in dumps() if len(data) <= LARGEST}


def see(data: bytes) -> Seen:
    """Return what is found; a refusal is one with a warning."""
    try:
        captures = importers.load(data, "damaged")
    except StallscopeError:
        return Seen((), 0.0, waiters=False, unreadable=1, warned=True, threads=0)
    names: list[str] = []
    confidence = 0.0
    waiters = False
    threads = 0
    for capture in captures:
        threads += sum(thread.count for thread in capture.threads)
        analysis = engine.analyze(capture, KNOWN)
        waiters = waiters or waits.WAITING in analysis.states
        if analysis.findings:
            names.append(analysis.findings[0].signature or "?")
            confidence = confidence or analysis.findings[0].confidence
    reading = captures[0].reading
    assert reading is not None
    assert reading.lines == reading.frames + reading.heads + reading.prose + reading.unreadable
    assert min(reading.frames, reading.heads, reading.prose, reading.unreadable) >= 0
    warned = any(note.code == "lines-lost" for note in captures[0].notes)
    assert warned == (reading.unreadable > 0)
    lost = any(thread.unwind == "lost" for capture in captures for thread in capture.threads)
    return Seen(tuple(names), confidence, waiters, reading.unreadable, warned or lost, threads)


@cache
def clean(name: str) -> Seen:
    return see(DUMPS[name])


def wrong(name: str, chosen: Sequence[str]) -> str | None:
    """Return what is wrong with the finding of a damaged dump."""
    before = clean(name)
    after = see(damage.apply(chosen, DUMPS[name]))
    if after.names == before.names and after.waiters >= before.waiters:
        return None
    if set(after.names) - set(before.names) - {"?"}:
        return f"another name: {before} became {after}"
    if not after.warned and not before.warned:
        return f"lost in silence: {before} became {after}"
    if after.confidence > before.confidence + 0.005:
        return f"surer: {before} became {after}"
    return None


def several(stage: int, most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(list(damage.STAGES[stage])), max_size=most, unique=True)


@st.composite
def damages(draw: st.DrawFn) -> list[str]:
    """Several damages of one dump, as they occur together."""
    names = draw(several(0, 2)) + draw(several(1, 1)) + draw(several(2, 2))
    return names + draw(several(3, 1)) + draw(several(4, 1))


@pytest.mark.large
@seed(SEED)
@settings(
    max_examples=COUNT,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.sampled_from(sorted(DUMPS)), damages())
def test_random_damages(name: str, chosen: list[str]) -> None:
    note(f"seed {SEED}, {name}: {chosen}")
    assert wrong(name, chosen) is None


@pytest.mark.parametrize("name", sorted(damage.DAMAGES))
def test_one_damage_is_undone(name: str) -> None:
    """Of a gdb dump nothing is lost by any single damage."""
    data = DUMPS[gdb_dumps.INDEX_LOCK]
    before = clean(gdb_dumps.INDEX_LOCK)
    after = see(damage.apply([name], data))
    assert after._replace(confidence=0.0) == before._replace(confidence=0.0)
    assert damage.apply([name], data) != data or name in NOT_IN_GDB


NOT_IN_GDB = ("count joined to the name",)

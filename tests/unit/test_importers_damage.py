# SPDX-License-Identifier: Apache-2.0
"""A dump that was damaged on its way has the finding that it had, or a weaker one with a warning.

``STALLSCOPE_DAMAGES`` is the number of random damages, ``STALLSCOPE_SEED`` their seed. 20,000 by
hand: ``STALLSCOPE_DAMAGES=20000 .venv/bin/python -P -m pytest -q tests/unit/test_importers_damage.py
-k random``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

from stallscope.analyzers import catalog, engine, importers, waits
from stallscope.base.errors import StallscopeError
from tests.bench.labelled import public
from tests.support import damage

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent.parent / "data"
COUNT = int(os.environ.get("STALLSCOPE_DAMAGES", "200"))
SEED = int(os.environ.get("STALLSCOPE_SEED", "20261125"))
LARGEST = 400_000
"""Bytes of the dumps that are tried: larger ones say the same, and take seconds each."""
MOST = 4
"""Damages of one dump."""
KNOWN = catalog.load()


class Seen(NamedTuple):
    """What is found in a dump. ``names``: the first finding of each capture that has one."""

    names: tuple[str, ...]
    confidence: float
    waiters: bool
    unreadable: int
    warned: bool
    threads: int


def dumps() -> Iterator[Path]:
    """Yield dumps with stacks or waits: those of the project, and public ones where there are."""
    yield from sorted((DATA / "gdb").glob("*.in"))
    for name in ("eu-stack-*", "gdb-*", "innodb-*", "lldb", "pt-pmp", "quickstack", "coredumpctl"):
        yield from sorted((DATA / "importers").glob(f"{name}.in"))
    for case in public():
        yield case.path


DUMPS = [path for path in dumps() if path.stat().st_size <= LARGEST]


def name_of(path: Path) -> str:
    return path.parent.name if path.name == "dump.txt" else path.stem


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


@lru_cache(maxsize=None)
def clean(path: Path) -> Seen:
    return see(path.read_bytes())


def wrong(path: Path, names: Sequence[str]) -> str | None:
    """Return what is wrong with the finding of a damaged dump."""
    before = clean(path)
    after = see(damage.apply(names, path.read_bytes()))
    if after.names == before.names and after.waiters >= before.waiters:
        return None
    if set(after.names) - set(before.names) - {"?"}:
        return f"another name: {before} became {after}"
    if not after.warned and not before.warned:
        return f"lost in silence: {before} became {after}"
    if after.confidence > before.confidence + 0.005:
        return f"surer: {before} became {after}"
    return None

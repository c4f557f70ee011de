# SPDX-License-Identifier: Apache-2.0
"""Dumps of real servers and what is said of them: tests/data/gdb, NAME.out.

``STALLSCOPE_UPDATE_GOLDEN=1`` writes the .out files; read the difference before committing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Analysis
from tests.unit import gdb_dumps

DATA = Path(__file__).parent.parent / "data" / "gdb"


def describe(analysis: Analysis) -> Iterator[str]:
    counts = {state: analysis.states.count(state) for state in ("idle", "running", "waiting")}
    yield f"server {analysis.server}, threads {counts}"
    for finding in analysis.findings:
        yield ""
        yield f"{finding.signature} {finding.confidence:.2f}: {finding.threads} threads"
        yield f"  {finding.title}"
        if finding.victim_of:
            yield f"  victim of {finding.victim_of}"
        if finding.blocker:
            yield (
                f"  blocker {finding.blocker.tid} {finding.blocker.state} "
                f"({finding.blocker.source}): {' < '.join(finding.blocker.frames[:6])}"
            )
        for link in finding.chain:
            yield f"  chain {link.signature} {link.threads} {link.tid}"
        for lock in finding.locks:
            yield f"  lock {lock.symbol or 'unnamed'} {lock.kind} waiters {lock.waiters}"
        for text in finding.evidence:
            yield f"  + {text}"
        for text in finding.against:
            yield f"  - {text}"
    yield ""
    for group in analysis.groups:
        yield f"{group.count} {group.state} {','.join(group.frames)}"


@pytest.mark.parametrize("name", gdb_dumps.NAMES)
def test_golden(name: str, signatures: catalog.Catalog) -> None:
    (capture,) = importers.load(gdb_dumps.dump(name), name)
    lines = list(describe(engine.analyze(capture, signatures)))
    text = "\n".join(lines) + "\n"
    expected = DATA / f"{name}.out"
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        expected.write_text(text)
    assert text == expected.read_text()


@pytest.mark.parametrize("name", gdb_dumps.NAMES)
def test_the_verdict_is_what_the_stall_was_made_as(name: str, signatures: catalog.Catalog) -> None:
    """The .out files cannot hide a mistake."""
    (capture,) = importers.load(gdb_dumps.dump(name), name)
    found = [
        finding.signature if finding.confidence >= 0.5 else None
        for finding in engine.analyze(capture, signatures).findings
    ]
    expect = json.loads((gdb_dumps.path_of(name).parent / "meta.json").read_text())["expect"]
    if name == "row-lock-mariadb-mariadb":  # none of InnoDB's frames has a name there
        assert found == [None]
    else:
        assert found[:1] == expect

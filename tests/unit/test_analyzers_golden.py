# SPDX-License-Identifier: Apache-2.0
"""Dumps of real servers and what is said of them: tests/data/gdb, NAME.in and NAME.out.

``STALLSCOPE_UPDATE_GOLDEN=1`` writes the .out files; read the difference before committing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Analysis

DATA = Path(__file__).parent.parent / "data" / "gdb"
CASES = sorted(DATA.glob("*.in"))


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


def test_there_are_cases() -> None:
    assert len(CASES) >= 14


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path, signatures: catalog.Catalog) -> None:
    lines: list[str] = []
    for capture in importers.load(path.read_bytes(), path.name):
        lines += describe(engine.analyze(capture, signatures))
    text = "\n".join(lines) + "\n"
    expected = path.with_suffix(".out")
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        expected.write_text(text)
    assert text == expected.read_text()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_name_of_the_case_is_the_verdict(path: Path, signatures: catalog.Catalog) -> None:
    """What the stall was made as is what it is found as: the .out files cannot hide a mistake."""
    (capture,) = importers.load(path.read_bytes(), path.name)
    findings = engine.analyze(capture, signatures).findings
    _, _, name = path.stem.partition("-")
    if name == "idle":
        assert not findings
    elif name == "stripped-innodb":  # a row lock: none of InnoDB's frames has a name there
        assert [finding.signature for finding in findings] == [None]
    else:
        assert findings[0].signature is not None
        assert name.startswith(findings[0].signature)
        assert findings[0].confidence >= 0.5

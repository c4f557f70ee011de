# SPDX-License-Identifier: Apache-2.0
"""Public stack dumps with known causes, where the machine has them; none of them is in this tree.

``STALLSCOPE_CORPUS`` names the folders, with colons between them. Each case has ``dump.txt`` and
``meta.json``, whose ``expect`` lists the signatures that are right as the first finding; empty:
nothing is wrong there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Finding
from tests.bench.labelled import public

pytestmark = pytest.mark.nightly

CASES = [case.path.parent for case in public()]
WITHOUT = "no public dumps here: set STALLSCOPE_CORPUS"
NONE = pytest.param(Path("none"), marks=pytest.mark.skip(reason=WITHOUT))
SURE = 0.5
LEFT_OVER = 0.05
"""Of the dumps: so many may be without a name."""
KNOWN_WRONG = {"tachi-20220419-flush-list-fixed-pages-dict-stats": frozenset({"table-open-lock"})}
"""A wait that is in the dump as well: which thread holds that lock, it does not show."""


def findings(case: Path, signatures: catalog.Catalog) -> list[Finding]:
    """Return the findings of all captures of a case, or skip a format that cannot be read yet."""
    try:
        captures = importers.load((case / "dump.txt").read_bytes(), case.name)
    except importers.UnknownFormat as error:
        pytest.skip(str(error))
    return [
        finding for capture in captures for finding in engine.analyze(capture, signatures).findings
    ]


@pytest.mark.parametrize("case", CASES or [NONE], ids=lambda case: case.name)
def test_no_dump_is_named_wrongly(case: Path, signatures: catalog.Catalog) -> None:
    expect = set(json.loads((case / "meta.json").read_text())["expect"])
    sure = [finding for finding in findings(case, signatures) if finding.confidence >= SURE]
    if expect - KNOWN_WRONG.get(case.name, frozenset()) and sure:
        assert sure[0].signature in expect | KNOWN_WRONG.get(case.name, frozenset())
    elif not expect:
        assert [finding.signature for finding in sure] == []


@pytest.mark.skipif(not CASES, reason=WITHOUT)
def test_nearly_all_dumps_are_named(signatures: catalog.Catalog) -> None:
    missed = []
    for case in CASES:
        expect = set(json.loads((case / "meta.json").read_text())["expect"])
        found = findings(case, signatures)
        sure = bool(found) and found[0].confidence >= SURE and found[0].signature in expect
        if expect and not sure and "?" not in expect:
            missed.append(case.name)
    assert len(missed) <= LEFT_OVER * len(CASES), missed

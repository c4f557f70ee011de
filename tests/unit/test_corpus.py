# SPDX-License-Identifier: Apache-2.0
"""Public stack dumps with known causes, where the machine has them; none of them is in this tree.

``STALLSCOPE_CORPUS`` names the folders, with colons between them. Each case has ``dump.txt`` and ``meta.json``, whose
``expect`` lists the signatures that are right as the first finding; empty: nothing is wrong there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Finding
from tests.bench.labelled import public

CASES = [case.path.parent for case in public()]
SURE = 0.5


def findings(case: Path, signatures: catalog.Catalog) -> list[Finding]:
    """Return the findings of all captures of a case, or skip a format that cannot be read yet."""
    try:
        captures = importers.load((case / "dump.txt").read_bytes(), case.name)
    except importers.UnknownFormat as error:
        pytest.skip(str(error))
    return [
        finding for capture in captures for finding in engine.analyze(capture, signatures).findings
    ]


@pytest.mark.skipif(not CASES, reason="no public dumps here: set STALLSCOPE_CORPUS")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Path, signatures: catalog.Catalog) -> None:
    expect = set(json.loads((case / "meta.json").read_text())["expect"])
    found = findings(case, signatures)
    sure = [finding.signature for finding in found if finding.confidence >= SURE]
    if not expect:
        assert sure == []
    elif expect & set(signatures.by_id):
        if found or "?" not in expect:
            assert found
            assert found[0].signature in expect
    else:  # no signature of this stall yet: then nothing else may be named for it
        assert not [
            name for name in sure if name is not None and not signatures.by_id[name].generic
        ]

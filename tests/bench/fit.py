# SPDX-License-Identifier: Apache-2.0
"""Fit the confidence to all dumps with known causes; write it, and a picture of how right it was on
sources that were left out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stallscope.analyzers import catalog, naming
from stallscope.analyzers.naming import Fit
from tests.bench.accuracy import BINS, Outcome, binned, tested
from tests.bench.fitting import Observed, fit, observe, with_damage
from tests.bench.labelled import CHECKOUT, own, public
from tests.bench.linechart import Chart, Line, draw
from tests.bench.stats import BenchError, Row, Section

__all__ = ["sections", "written"]

PICTURE = CHECKOUT / "docs" / "img" / "reliability.svg"
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Weights of the signs of a name's confidence (stallscope/analyzers/naming.py, docs/verdict.md).
# Written by `./scripts/bench fit`; do not edit.

"""


def sections(_server: str, _quick: bool, _only: Sequence[str]) -> Iterator[Section]:
    """Fit, write both files, and yield the table of weights."""
    signatures = catalog.load()
    seen = [observe(case, case.read(), signatures) for case in (*public(), *own())]
    if not any(item.case.public for item in seen) or all(item.case.public for item in seen):
        raise BenchError("the fit needs public and own dumps: set STALLSCOPE_CORPUS")
    seen = [*seen, *with_damage(seen, signatures)]
    judged = tested(seen, signatures)
    model = fit(seen, naming.load(), signatures)
    naming.DATA.write_text(written(model, seen), encoding="utf-8")
    PICTURE.write_text(_picture([o for _, _, o in judged]), encoding="utf-8")
    rows = [Row("intercept", {"weight": f"{model.intercept:.2f}"})]
    rows += [Row(name, {"weight": f"{value:.2f}"}) for name, value in model.weights.items()]
    files = f"{_relative(naming.DATA)}, {_relative(PICTURE)}"
    yield Section("fit", "Weights of signs", tuple(rows), notes=(f"written: {files}",))


def _relative(path: Path) -> str:
    return str(path.resolve().relative_to(CHECKOUT))


def written(model: Fit, seen: Sequence[Observed]) -> str:
    """Return the file of a fit to these dumps."""
    sources = len({item.case.source for item in seen})
    whole = sum(not item.damage for item in seen)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    fitted = f"{day}: {whole} dumps of {sources} sources, and as many with damage"
    lines = [
        f"intercept = {model.intercept}",
        f"most = {model.most}",
        f'fitted = "{fitted}"',
        "",
        "[weights]",
        *(f"{name} = {value}" for name, value in model.weights.items()),
    ]
    return HEAD + "\n".join(lines) + "\n"


def _picture(outcomes: Sequence[Outcome]) -> str:
    points = [(mean, right) for count, mean, right in (binned(outcomes, *b) for b in BINS) if count]
    return draw(
        Chart(
            "First findings of dumps whose sources were left out of the fit",
            "confidence",
            "share that is right",
            (
                Line("as it should be", [(0.0, 0.0), (1.0, 1.0)]),
                Line("as it is", sorted(points)),
            ),
        )
    )

# SPDX-License-Identifier: Apache-2.0
"""Verdicts on public dumps with known causes: right, wrong, missed, and how sure they were.

And on live stalls: whether it matters who dumped them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Finding
from stallscope.base.errors import StallscopeError
from tests.bench import own_dumps
from tests.bench.stats import BenchError, Row, Section

__all__ = ["Outcome", "judge", "sections"]

CHECKOUT = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("STALLSCOPE_CORPUS", CHECKOUT.parent / "shared" / "corpus"))
SURE = 0.5
"""The confidence from which on findings count."""
GOAL = 0.95
BINS = ((0.9, 1.01), (0.7, 0.9), (0.5, 0.7), (0.4, 0.5))

RIGHT, WRONG, MISSED, FALSE, QUIET = "right", "wrong", "missed", "false finding", "quiet"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one dump. ``result``: right, wrong, missed, false finding, or quiet."""

    name: str
    expect: tuple[str, ...]
    result: str
    verdict: str | None = None
    confidence: float = 0.0
    reason: str = ""
    healthy: bool = False

    @property
    def good(self) -> bool:
        return self.result in (RIGHT, QUIET)


def judge(expect: Sequence[str], findings: Sequence[Finding], name: str) -> Outcome:
    """Compare the findings of a dump with its label; healthy servers have an empty label."""
    sure = [f for f in findings if f.confidence >= SURE]
    first = (sure or list(findings))[0] if not expect and findings else None
    if not expect:
        if sure:
            assert first is not None
            reason = f"{first.signature or first.title} on a server where nothing is wrong"
            verdict, confidence = first.signature, first.confidence
            return Outcome(name, (), FALSE, verdict, confidence, reason, healthy=True)
        return Outcome(name, (), QUIET, healthy=True)
    if not findings:
        if "?" in expect:
            return Outcome(name, tuple(expect), QUIET)
        return Outcome(name, tuple(expect), MISSED, reason="no finding")
    first = findings[0]
    right = first.signature in expect
    reason = "" if right else f"named {first.signature or 'an unknown stall'}"
    result = RIGHT if right else WRONG
    return Outcome(name, tuple(expect), result, first.signature, first.confidence, reason)


def outcome(case: Path, signatures: catalog.Catalog) -> Outcome:
    """Return what the analysis makes of one dump of the corpus."""
    expect = tuple(json.loads((case / "meta.json").read_text())["expect"])
    try:
        captures = importers.load((case / "dump.txt").read_bytes(), case.name)
    except StallscopeError as error:
        why = f"cannot be read: {str(error).removeprefix(f'{case.name}: ')}"
        return Outcome(case.name, expect, MISSED, reason=why, healthy=not expect)
    findings = [f for capture in captures for f in engine.analyze(capture, signatures).findings]
    return judge(expect, findings, case.name)


def _without_own(case: Path, signatures: catalog.Catalog) -> Outcome:
    """Judge a dump by a catalog that does not know its stall: naming none is right then."""
    expect = json.loads((case / "meta.json").read_text())["expect"]
    found = outcome(case, signatures.without(expect))
    known = signatures.by_id.get(found.verdict or "")
    if known is not None and not known.generic and found.confidence >= SURE:
        return msgspec.structs.replace(found, result=FALSE)
    return msgspec.structs.replace(found, result=QUIET)


def _verdicts(outcomes: Sequence[Outcome]) -> Section:
    counts = {
        result: sum(o.result == result for o in outcomes)
        for result in (RIGHT, QUIET, WRONG, MISSED, FALSE)
    }
    good = sum(o.good for o in outcomes)
    healthy = sum(o.healthy for o in outcomes)
    row = Row(
        "dumps",
        {
            "all": str(len(outcomes)),
            "right": str(counts[RIGHT]),
            "rightly no finding": str(counts[QUIET]),
            "wrong": str(counts[WRONG]),
            "missed": str(counts[MISSED]),
            "false findings": f"{counts[FALSE]} of {healthy} healthy",
        },
    )
    return Section(
        "verdicts",
        "Verdicts on public dumps",
        (row,),
        goals=(
            (f"{good / len(outcomes):.1%} right; goal {GOAL:.0%}", good >= GOAL * len(outcomes)),
            (f"{counts[FALSE]} false findings; goal 0", counts[FALSE] == 0),
        ),
        notes=tuple(f"{o.name}: {o.result}: {o.reason}" for o in outcomes if not o.good),
    )


def _confidence(outcomes: Sequence[Outcome]) -> Section:
    rows = []
    for low, high in BINS:
        inside = [o for o in outcomes if low <= o.confidence < high and o.verdict is not None]
        right = sum(o.result == RIGHT for o in inside)
        share = f"{right / len(inside):.0%}" if inside else "-"
        name = f"{low:.1f} and above" if high > 1 else f"{low:.1f} to {high:.1f}"
        rows.append(Row(name, {"verdicts": str(len(inside)), "right": str(right), "share": share}))
    return Section("confidence", "First findings by their confidence", tuple(rows))


def _unknown(cases: Sequence[Path], signatures: catalog.Catalog) -> Section:
    """What the tool says of stalls that it does not know: their signatures are taken out."""
    labelled = [c for c in cases if json.loads((c / "meta.json").read_text())["expect"]]
    outcomes = [_without_own(case, signatures) for case in labelled]
    named = [o for o in outcomes if o.result == FALSE]
    row = Row(
        "dumps without their signature",
        {
            "all": str(len(outcomes)),
            "another stall named, 0.5 and above": str(len(named)),
            "none named, or a generic one": str(len(outcomes) - len(named)),
        },
    )
    return Section(
        "unknown",
        "Dumps whose signatures were taken out of the catalog",
        (row,),
        notes=tuple(f"{o.name}: {o.reason} ({o.confidence:.2f})" for o in named),
    )


def sections(_server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the tables of this benchmark."""
    if not only or {"verdicts", "confidence", "unknown"} & set(only):
        yield from _of_corpus(only)
    if not only or "live" in only:
        yield own_dumps.section(quick)


def _of_corpus(only: Sequence[str]) -> Iterator[Section]:
    cases = sorted(path.parent for path in CORPUS.glob("*/meta.json"))
    if not cases:
        raise BenchError(f"no dumps in {CORPUS}: set STALLSCOPE_CORPUS")
    signatures = catalog.load()
    outcomes = [outcome(case, signatures) for case in cases]
    if not only or "verdicts" in only:
        yield _verdicts(outcomes)
    if not only or "confidence" in only:
        yield _confidence(outcomes)
    if not only or "unknown" in only:
        yield _unknown(cases, signatures)

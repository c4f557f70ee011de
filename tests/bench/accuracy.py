# SPDX-License-Identifier: Apache-2.0
"""Verdicts on dumps with known causes, whose sources the confidence was not fitted to: right,
wrong, missed, how sure they were, and the same of damaged dumps.

And on live stalls: whether it matters who dumped them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog, engine, importers, naming
from stallscope.analyzers.analysis import Finding
from stallscope.analyzers.naming import Fit
from tests.bench import own_dumps
from tests.bench.fitting import (
    DAMAGES,
    SEED,
    Observed,
    damaged,
    first,
    left_out,
    observe,
    with_damage,
)
from tests.bench.labelled import OWN, PUBLIC, Labelled, own, public
from tests.bench.stats import BenchError, Row, Section

__all__ = ["BINS", "Outcome", "binned", "explain", "judge", "sections", "tested"]

SURE = 0.5
"""The confidence from which on findings count."""
GOAL = 0.90
GOAL_KNOWN = 0.95
GOAL_WRONG = 0.02
GOAL_DROPPED = 0.85
GOAL_BIN = 0.07
FEWEST = 20
"""Findings in a bin whose share of right ones says something."""
BINS = ((0.9, 1.01), (0.7, 0.9), (0.5, 0.7), (0.3, 0.5), (0.0, 0.3))

RIGHT, WRONG, MISSED, FALSE, QUIET = "right", "wrong", "missed", "false finding", "quiet"
DROPPED = "10 % of the frames dropped"
PARTS = {"public dumps": True, "own dumps": False}
ROUNDS = 3
"""Random damages of each kind and dump."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of one dump. ``result``: right, wrong, missed, false finding, or quiet."""

    name: str
    expect: tuple[str, ...]
    result: str
    verdict: str | None = None
    confidence: float = 0.0
    reason: str = ""
    format: str = ""
    family: str = ""

    @property
    def good(self) -> bool:
        return self.result in (RIGHT, QUIET)

    @property
    def healthy(self) -> bool:
        return not self.expect


def judge(expect: Sequence[str], top: Finding | None, name: str, error: str = "") -> Outcome:
    """Compare the first finding of a dump with its label; healthy servers have an empty label."""
    wanted = tuple(expect)
    if top is None:
        quiet = not expect or "?" in expect
        return Outcome(name, wanted, QUIET if quiet else MISSED, reason=error or "no finding")
    found = top.signature or "an unknown stall"
    right = top.signature in expect or (top.signature is None and "?" in expect)
    if top.confidence < SURE:
        quiet = not expect or "?" in expect
        result = QUIET if quiet else MISSED
        reason = f"{'only ' if right else ''}{found} {top.confidence:.2f}"
    elif not expect:
        result, reason = FALSE, f"{found} {top.confidence:.2f} on a server where nothing is wrong"
    else:
        result = RIGHT if right else WRONG
        reason = "" if right else f"named {found} {top.confidence:.2f}"
    return Outcome(name, wanted, result, top.signature, top.confidence, reason)


def _family(case: Labelled, signatures: catalog.Catalog) -> str:
    known = [signatures.by_id[name].family for name in case.expect if name in signatures.by_id]
    return known[0] if known else "healthy" if not case.expect else "unknown"


def outcome(item: Observed, model: Fit, signatures: catalog.Catalog) -> Outcome:
    """Return what this fit makes of one dump."""
    top = first(item, model, signatures)
    found = judge(item.case.expect, top, item.case.name, item.error)
    return msgspec.structs.replace(found, format=item.format, family=_family(item.case, signatures))


def tested(
    seen: Sequence[Observed], signatures: catalog.Catalog
) -> list[tuple[Fit, Observed, Outcome]]:
    """Judge each whole dump by a fit to all sources but its own."""
    return [
        (model, item, outcome(item, model, signatures))
        for model, items in left_out(seen, naming.load(), signatures)
        for item in items
        if not item.damage
    ]


def _counts(outcomes: Sequence[Outcome]) -> dict[str, str]:
    stalls = [o for o in outcomes if not o.healthy]
    healthy = [o for o in outcomes if o.healthy]
    right = sum(o.good for o in stalls)
    return {
        "stalls": str(len(stalls)),
        "right": f"{right} ({right / len(stalls):.0%})" if stalls else "-",
        "missed": str(sum(o.result == MISSED for o in stalls)),
        "wrong": str(sum(o.result == WRONG for o in stalls)),
        "healthy": str(len(healthy)),
        "false": str(sum(o.result == FALSE for o in healthy)),
    }


def _goals(outcomes: Sequence[Outcome], least: float) -> tuple[tuple[str, bool], ...]:
    stalls = [o for o in outcomes if not o.healthy]
    right = sum(o.good for o in stalls) / max(1, len(stalls))
    wrong = sum(o.result == WRONG for o in stalls) / max(1, len(stalls))
    false = sum(o.result == FALSE for o in outcomes)
    return (
        (f"{right:.1%} right at {SURE} or more; goal {least:.0%}", right >= least),
        (f"{wrong:.1%} wrong; goal under {GOAL_WRONG:.0%}", wrong < GOAL_WRONG),
        (f"{false} false findings on healthy servers; goal 0", false == 0),
    )


def _table(title: str, key: str, outcomes: Sequence[Outcome]) -> Section:
    """Return a table by format or family."""
    names = sorted({getattr(o, key) for o in outcomes})
    rows = [Row(n, _counts([o for o in outcomes if getattr(o, key) == n])) for n in names]
    return Section(f"by-{key}", title, (*rows, Row("all", _counts(outcomes))))


def _bad(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    return tuple(
        f"{o.name} ({', '.join(o.expect) or 'healthy'}): {o.result}: {o.reason}"
        for o in outcomes
        if not o.good
    )


def binned(outcomes: Sequence[Outcome], low: float, high: float) -> tuple[int, float, float]:
    """Return of the named first findings in a bin their number, mean confidence, share right."""
    inside = [
        o
        for o in outcomes
        if o.verdict is not None and low <= o.confidence < high and "?" not in o.expect
    ]
    if not inside:
        return 0, 0.0, 0.0
    mean = sum(o.confidence for o in inside) / len(inside)
    return len(inside), mean, sum(o.verdict in o.expect for o in inside) / len(inside)


def _reliability(outcomes: Sequence[Outcome]) -> Section:
    rows = []
    goals = []
    for low, high in BINS:
        count, mean, right = binned(outcomes, low, high)
        name = f"{low:.1f} and above" if high > 1 else f"{low:.1f} to {high:.1f}"
        cells = {"first findings": str(count)}
        if count:
            cells |= {"mean confidence": f"{mean:.2f}", "right": f"{right:.2f}"}
        rows.append(Row(name, cells))
        if count >= FEWEST:
            off = abs(mean - right)
            goals.append((f"{name}: {off:.2f} apart; goal {GOAL_BIN}", off <= GOAL_BIN))
    named = [o for o in outcomes if o.verdict is not None and "?" not in o.expect]
    brier = sum((o.confidence - (o.verdict in o.expect)) ** 2 for o in named) / max(1, len(named))
    return Section(
        "reliability",
        "Confidence of the first finding, and how often it is right, on sources left out",
        tuple(rows),
        goals=tuple(goals),
        notes=(
            f"Brier score {brier:.3f} of {len(named)} first findings with a name",
            f"bins of fewer than {FEWEST} have no goal",
        ),
    )


def _damaged(
    judged: Sequence[tuple[Fit, Observed, Outcome]], signatures: catalog.Catalog, quick: bool
) -> Section:
    rows, goals, notes = [], [], []
    for name in DAMAGES:
        outcomes = []
        for model, item, _ in judged:
            for number in range(1 if quick else ROUNDS):
                seen = damaged(item, name, number, signatures)
                if seen is not None:
                    outcomes.append(outcome(seen, model, signatures))
        rows.append(Row(name, _counts(outcomes)))
        if name == DROPPED:
            goals = list(_goals(outcomes, GOAL_DROPPED))
        wrong = [o for o in outcomes if o.result in (WRONG, FALSE)]
        notes += [f"{name}: {line}" for line in _bad(wrong)[:5]]
    return Section(
        "damage",
        "The same under random damage",
        tuple(rows),
        goals=tuple(goals),
        notes=(f"seed {SEED}", *notes),
    )


def _unknown(seen: Sequence[Observed], signatures: catalog.Catalog) -> Section:
    """What the tool says of stalls that it does not know: their signatures are taken out."""
    model = naming.load()
    named = []
    labelled = [item for item in seen if item.case.expect and not item.error]
    for item in labelled:
        other = signatures.without(item.case.expect)
        again = observe(item.case, item.case.read(), other)
        top = first(again, model, other)
        known = other.by_id.get(top.signature or "") if top is not None else None
        if top is not None and known and not known.generic and top.confidence >= SURE:
            named.append(f"{item.case.name}: named {top.signature} ({top.confidence:.2f})")
    row = Row(
        "dumps without their signature",
        {
            "all": str(len(labelled)),
            "another stall named, 0.5 and above": str(len(named)),
            "none named, or a generic one": str(len(labelled) - len(named)),
        },
    )
    return Section(
        "unknown",
        "Dumps whose signatures were taken out of the catalog",
        (row,),
        notes=tuple(named),
    )


def sections(_server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the tables of this benchmark."""
    if not only or set(only) != {"live"}:
        yield from _of_dumps(quick, only)
    if not only or "live" in only:
        yield own_dumps.section(quick)


def _of_dumps(quick: bool, only: Sequence[str]) -> Iterator[Section]:
    signatures = catalog.load()
    cases = [*public(), *own()]
    if not cases:
        folders = ", ".join(map(str, (*PUBLIC, OWN)))
        raise BenchError(f"no dumps in {folders}: set STALLSCOPE_CORPUS")
    seen = [observe(case, case.read(), signatures) for case in cases]
    if not only or "known" in only:
        known = [outcome(item, naming.load(), signatures) for item in seen]
        yield Section(
            "known",
            "Verdicts with the package's fit, which knows these dumps",
            tuple(Row(title, _counts(_part(known, cases, title))) for title in PARTS),
            goals=_goals(known, GOAL_KNOWN),
            notes=_bad(known),
        )
    judged = tested([*seen, *with_damage(seen, signatures)], signatures)
    of_public = [o for _, item, o in judged if item.case.public]
    outcomes = [o for _, _, o in judged]
    if not only or "left-out" in only:
        yield msgspec.structs.replace(
            _table("Sources left out: public dumps, by format", "format", of_public),
            goals=_goals(of_public, GOAL),
            notes=_bad(of_public),
        )
        yield msgspec.structs.replace(
            _table("Sources left out: public and own dumps, by family", "family", outcomes),
            goals=_goals(outcomes, GOAL),
            notes=_bad([o for _, item, o in judged if not item.case.public]),
        )
    if not only or "reliability" in only:
        yield _reliability(outcomes)
    if not only or "damage" in only:
        yield _damaged(judged, signatures, quick)
    if not only or "unknown" in only:
        yield _unknown(seen, signatures)


def _part(outcomes: Sequence[Outcome], cases: Sequence[Labelled], title: str) -> list[Outcome]:
    pairs = zip(outcomes, cases, strict=True)
    return [found for found, case in pairs if case.public == PARTS[title]]


def explain(path: Path) -> Iterator[str]:
    """Yield how each finding of a file came about: its signs with their weights, and its place."""
    signatures, model = catalog.load(), naming.load()
    options = engine.Options(min_confidence=0.0)
    for capture in importers.load(path.read_bytes(), path.name):
        analysis = engine.analyze(capture, signatures, options=options)
        yield f"{capture.backend}: {len(capture.threads)} stacks, server {analysis.server}"
        for finding in analysis.findings:
            yield ""
            yield from _explained(finding, model)


def _explained(finding: Finding, model: Fit) -> Iterator[str]:
    impact = finding.impact
    yield f"{finding.signature or 'no name'}: {finding.title}"
    held_up = f"{impact.threads:g} threads, {impact.share:.0%}"
    yield f"  confidence {finding.confidence:.2f}; {impact.kind}: {held_up}"
    if finding.victim_of:
        yield f"  a victim of {finding.victim_of}"
    if finding.signature is not None:
        yield f"  {model.intercept:+6.2f}  to begin with"
        for sign, weight in model.weights.items():
            if value := getattr(finding.signs, sign):
                yield f"  {weight * value:+6.2f}  {sign} {value:.2f} x {weight:.2f}"
    for text in finding.evidence:
        yield f"  for: {text}"
    for text in finding.against:
        yield f"  against: {text}"

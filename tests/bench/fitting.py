# SPDX-License-Identifier: Apache-2.0
"""Fit the confidence to dumps with known causes, and judge it on sources that were left out."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from stallscope.analyzers import catalog, engine, importers, verdict
from stallscope.analyzers.analysis import Finding, Signs
from stallscope.analyzers.naming import SIGNS, Fit
from stallscope.base.errors import StallscopeError
from tests.bench.labelled import Labelled
from tests.bench.renames import pairs
from tests.support import damage

__all__ = [
    "DAMAGES",
    "SEED",
    "Observed",
    "damaged",
    "first",
    "fit",
    "left_out",
    "observe",
    "with_damage",
]

AGAINST = frozenset(
    [
        "few",
        "few_chosen",
        "single",
        "brief",
        "rival",
        "strange",
        "incomplete",
        "lone",
        "idle_work",
        "unqueued",
        "nearer",
    ]
)
"""Signs that never make a name surer; all others but these and ``EITHER`` never make it less."""
EITHER = frozenset({"chosen", "listed", "generic"})
PRIOR = {
    "brief": -6.0,  # a wait that is over in 10 ms is no stall; no dump but the library's says so
    "idle_work": -3.0,  # who works keeps nobody waiting, if few do
    "few": -4.0,  # on a server that works a thread or two wait at each moment
    "lone": -1.0,
    "generic": -1.0,  # what any program has says less than the server's own name
    "blocker": 0.5,
    "lock": 0.5,
    "lasting": 0.5,
}
"""What is known without data. A weight is held near it, or near 0, where data is rare."""
RIDGE = 1.0
"""How strongly, in dumps."""
OWN_WEIGHT = 0.25
"""Of a dump that was made here, in one of several formats, against a public one."""
ROUNDS = 4
"""Which finding is first depends on the fit, and the fit on which is first."""
Damage = Callable[[str, random.Random], str]
DAMAGES: dict[str, Damage] = {
    "5 % of the frames dropped": lambda text, rng: damage.drop_frames(text, 0.05, rng),
    "10 % of the frames dropped": lambda text, rng: damage.drop_frames(text, 0.10, rng),
    "20 % of the frames dropped": lambda text, rng: damage.drop_frames(text, 0.20, rng),
    "unknown frames inserted, 5 %": lambda text, rng: damage.insert_unknown(text, 0.05, rng),
    "unknown frames inserted, 10 %": lambda text, rng: damage.insert_unknown(text, 0.10, rng),
    "names as in other versions": lambda text, rng: damage.rename(text, pairs(), rng),
    "20 % of the threads removed": lambda text, rng: damage.remove_threads(text, 0.20, rng),
    "50 % of the threads removed": lambda text, rng: damage.remove_threads(text, 0.50, rng),
}
SEED = 20_261_125
FOLDS = 20
MOST = 0.97
LEAST_SHOWN = 0.0


class Observed(NamedTuple):
    """One dump as the engine sees it, before confidence: all findings, with their signs."""

    case: Labelled
    format: str
    findings: tuple[Finding, ...]
    error: str = ""
    damage: str = ""
    """What was done to it; empty: it is whole."""


def observe(case: Labelled, data: bytes, signatures: catalog.Catalog) -> Observed:
    """Analyze a dump that may be damaged."""
    try:
        captures = importers.load(data, case.name)
    except StallscopeError as error:
        return Observed(case, "-", (), str(error).removeprefix(f"{case.name}: "))
    options = engine.Options(min_confidence=LEAST_SHOWN)
    found = [f for c in captures for f in engine.analyze(c, signatures, options=options).findings]
    return Observed(case, captures[0].backend, tuple(found))


def damaged(item: Observed, name: str, number: int, signatures: catalog.Catalog) -> Observed | None:
    """Return a dump after random damage; None for captures, which are no text."""
    if item.error or item.case.path.name.startswith("capture."):
        return None
    seed = zlib.crc32(f"{SEED} {name} {item.case.name} {number}".encode())
    text = item.case.read().decode("utf-8", "replace")
    broken = DAMAGES[name](text, random.Random(seed))
    return observe(item.case, broken.encode(), signatures)._replace(damage=name)


def with_damage(seen: Sequence[Observed], signatures: catalog.Catalog) -> list[Observed]:
    """Return each dump with one of the damages: all of them in turn."""
    names = list(DAMAGES)
    broken = (damaged(item, names[n % len(names)], 0, signatures) for n, item in enumerate(seen))
    return [item for item in broken if item is not None]


def first(seen: Observed, model: Fit, signatures: catalog.Catalog) -> Finding | None:
    """Return the finding that is first with this fit; None: nothing is found."""
    found = [verdict.named_again(finding, model) for finding in seen.findings]
    ranked = verdict.order(found, signatures, LEAST_SHOWN)
    return ranked[0] if ranked else None


def _samples(
    seen: Sequence[Observed], model: Fit, signatures: catalog.Catalog
) -> list[tuple[Signs, bool, float]]:
    """Return (signs, whether the name is right, weight) of the first finding of each dump, and of
    the right one where it is not the first."""
    out = []
    for item in seen:
        weight = 1.0 if item.case.public else OWN_WEIGHT
        top = first(item, model, signatures)
        if top is None or "?" in item.case.expect:
            continue
        right = [f for f in item.findings if f.signature in item.case.expect]
        if top.signature is not None:
            out.append((top.signs, top.signature in item.case.expect, weight))
        if right and top.signature not in item.case.expect:
            out.append((right[0].signs, True, weight))
        if not item.case.expect:  # of a healthy server no finding is right
            others = [f for f in item.findings if f is not top and f.signature is not None]
            out += [(f.signs, False, weight) for f in others if f.signs != top.signs]
    return out


def fit(seen: Sequence[Observed], start: Fit, signatures: catalog.Catalog) -> Fit:
    """Return the fit to these dumps."""
    model = start
    for _ in range(ROUNDS):
        samples = _samples(seen, model, signatures)
        names = list(SIGNS)
        while True:
            values = _logistic(samples, names)
            wrong = [n for n, v in zip(names, values[1:], strict=True) if _is_wrong(n, v)]
            if not wrong:
                break
            names = [name for name in names if name not in wrong]
        weights = {n: round(v, 3) for n, v in zip(names, values[1:], strict=True) if round(v, 3)}
        model = Fit(intercept=round(values[0], 3), weights=weights, most=MOST)
    return model


def _is_wrong(name: str, value: float) -> bool:
    if name in EITHER:
        return False
    return value > 0 if name in AGAINST else value < 0


def _logistic(samples: Sequence[tuple[Signs, bool, float]], names: Sequence[str]) -> list[float]:
    """Return intercept and weights of a logistic model, by Newton's method with a ridge."""
    equal: dict[tuple[tuple[float, ...], bool], float] = {}
    for signs, right, weight in samples:
        key = (1.0, *(getattr(signs, name) for name in names)), right
        equal[key] = equal.get(key, 0.0) + weight
    rows = [(row, right, weight) for (row, right), weight in equal.items()]
    size = len(names) + 1
    prior = [0.0, *(PRIOR.get(name, 0.0) for name in names)]
    beta = list(prior)
    for _ in range(30):
        gradient = [-RIDGE * (b - p) for b, p in zip(beta, prior, strict=True)]
        gradient[0] = 0.0
        hessian = [[RIDGE * (i == j and i > 0) for j in range(size)] for i in range(size)]
        hessian[0][0] = 1e-6
        for row, right, weight in rows:
            score = sum(b * x for b, x in zip(beta, row, strict=True))
            chance = 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))
            error = weight * (right - chance)
            curve = weight * chance * (1 - chance)
            active = [i for i, x in enumerate(row) if x]
            for i in active:
                gradient[i] += error * row[i]
                for j in active:
                    hessian[i][j] += curve * row[i] * row[j]
        step = _solve(hessian, gradient)
        beta = [b + max(-2.0, min(2.0, s)) for b, s in zip(beta, step, strict=True)]
        if max(map(abs, step)) < 1e-4:
            break
    return beta


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a system of linear equations by elimination."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for other in range(i + 1, size):
            factor = rows[other][i] / rows[i][i]
            if factor:
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[i], strict=True)]
    out = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * out[j] for j in range(i + 1, size))
        out[i] = (rows[i][size] - known) / rows[i][i]
    return out


def left_out(
    seen: Sequence[Observed], start: Fit, signatures: catalog.Catalog
) -> Iterable[tuple[Fit, list[Observed]]]:
    """Yield the fit to all sources but some, and the dumps of those, until each was left out."""
    sources = sorted({item.case.source for item in seen})
    for number in range(min(FOLDS, len(sources))):
        away = set(sources[number::FOLDS])
        kept = [item for item in seen if item.case.source not in away]
        yield (
            fit(kept, start, signatures),
            [item for item in seen if item.case.source in away],
        )

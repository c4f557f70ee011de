# SPDX-License-Identifier: Apache-2.0
"""One verdict of those of an incident's captures."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.incident import Verdict

__all__ = ["combine"]


def combine(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the verdict of an incident: docs/agent.md, "The verdict of an incident".

    Of each signature the threads that it explains times its confidence are added up over the
    captures; the largest sum wins. It reads as in the capture that has most of it.
    """
    weights: dict[str | None, float] = {}
    best: dict[str | None, Verdict] = {}
    for verdict in verdicts:
        if verdict is None:
            continue
        weight = _weight(verdict)
        weights[verdict.signature] = weights.get(verdict.signature, 0.0) + weight
        known = best.get(verdict.signature)
        if known is None or weight > _weight(known):
            best[verdict.signature] = verdict
    if not weights:
        return None
    # A stall without a name is the answer only where no capture has one with a name.
    named = {signature: weight for signature, weight in weights.items() if signature is not None}
    return best[max(named, key=named.__getitem__) if named else None]


def _weight(verdict: Verdict) -> float:
    return max(verdict.threads, 1) * verdict.confidence

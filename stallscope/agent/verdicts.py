# SPDX-License-Identifier: Apache-2.0
"""Choose the verdict of an incident from those of its captures."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.incident import Verdict

__all__ = ["combine"]


def combine(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the verdict of an incident: docs/agent.md, "The verdict of an incident".

    For each signature, the number of explained threads times the confidence is summed over the
    captures; the largest sum wins. The text is that of the capture with the largest part.
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
    # An unnamed stall is the verdict only where no capture has a named one.
    named = {signature: weight for signature, weight in weights.items() if signature is not None}
    return best[max(named, key=named.__getitem__) if named else None]


def _weight(verdict: Verdict) -> float:
    return max(verdict.threads, 1) * verdict.confidence

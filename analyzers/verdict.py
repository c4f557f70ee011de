# SPDX-License-Identifier: Apache-2.0
"""Findings: the cases of the blame graph with their names, how sure those are, and what they hold
up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallscope.analyzers import blame, conditions, evidence, generic, naming
from stallscope.analyzers.analysis import Finding, Link, Signs
from stallscope.analyzers.blame import Case
from stallscope.analyzers.blocker import pending
from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.naming import Fit
from stallscope.analyzers.scene import Scene, waiter_groups

__all__ = ["findings", "named_again", "order"]

UNNAMED_MOST = 0.49
"""For what has no name: 0.5 is where a name can be used."""
LAST = 1_000
"""Precedence of what no signature knows."""


def findings(scene: Scene, fit: Fit) -> list[Finding]:
    """Return a finding for each case, in no particular order."""
    whole = conditions.case(scene)
    if whole is not None:
        return [_finding(scene, {whole.signature.id: whole}, whole, fit)]
    cases = blame.named(scene)
    for case in generic.cases(scene, list(cases.values())):
        cases.setdefault(case.signature.id, case)
    blame.link(scene, cases)
    blame.add_rings(scene, cases)
    return [_finding(scene, cases, case, fit) for case in cases.values()]


def _finding(scene: Scene, cases: Mapping[str, Case], case: Case, fit: Fit) -> Finding:
    signature = case.signature
    victims = blame.victims(cases, signature.id)
    held_up = blame.blocked(case, victims)
    count = scene.weight(held_up)
    impact = blame.impact(scene, case, held_up)
    signs = naming.signs(scene, case, cases, held_up, impact)
    says, against = evidence.collect(scene, case, victims)
    if impact.time_s is not None and len(held_up) > 1:
        says.append(f"these threads have waited {impact.time_s:.1f} s together")
    queued = pending(scene, signature, case.waiters)
    chain = [
        Link(
            signature=item.signature.id,
            threads=scene.weight(item.waiters),
            tid=_link_tid(scene, item, root=item is case),
        )
        for item in (case, *victims)
    ]
    return Finding(
        signature=None if case.unnamed else signature.id,
        title=case.title or signature.title,
        confidence=fit.most if case.sure else _confidence(signs, fit, named=not case.unnamed),
        whole=case.whole,
        impact=impact,
        signs=signs,
        threads=count,
        blocker=scene.blocker(case.blocker) if case.blocker else None,
        waiters=waiter_groups(scene, held_up),
        locks=scene.locks_of(held_up),
        chain=tuple(chain) if not case.unnamed else (),
        evidence=tuple(says),
        remedies=signature.remedies,
        references=signature.references,
        against=tuple(against),
        meaning="" if case.unnamed else " ".join(signature.meaning.split()),
        victim_of=case.root,
        members=tuple(sorted(held_up)),
        pending=queued[0] if queued is not None else None,
        kept=signature.kept is not None,
        cancels=queued is not None and queued[1].cancels,
    )


def _confidence(signs: Signs, fit: Fit, *, named: bool) -> float:
    if named:
        return round(fit.confidence(signs), 2)
    return round(UNNAMED_MOST * signs.share * (1.0 - signs.brief), 2)


def named_again(finding: Finding, fit: Fit) -> Finding:
    """Return a finding of one capture with the confidence of another fit."""
    if finding.whole:
        return finding
    confidence = _confidence(finding.signs, fit, named=finding.signature is not None)
    return msgspec.structs.replace(finding, confidence=confidence)


def _stands_unnamed(finding: Finding) -> bool:
    return finding.signature is None and finding.impact.is_stall and not finding.signs.brief


def _link_tid(scene: Scene, case: Case, *, root: bool) -> int | None:
    """Return the blocker of a link; of a victim only a certain one, or the chain would branch."""
    if case.blocker is None or not (root or case.blocker.certain):
        return None
    return scene.capture.threads[case.blocker.thread].tid


def order(found: Sequence[Finding], catalog: Catalog, least: float) -> list[Finding]:
    """Put the verdict first: roots before victims, then the surer, the larger, nearer to causes.

    ``least``: the confidence below which a name is not worth showing; what has none is shown for
    what it holds up.
    """
    kept = [finding for finding in found if finding.confidence >= least or _stands_unnamed(finding)]
    names = {finding.signature for finding in kept}

    def rank(finding: Finding) -> tuple[bool, float, int, int]:
        known = catalog.by_id.get(finding.signature or "")
        return (
            finding.victim_of is not None and finding.victim_of in names,
            -finding.confidence,
            -finding.threads,
            known.precedence if known is not None else LAST,
        )

    return sorted(kept, key=rank)

# SPDX-License-Identifier: Apache-2.0
"""Where a server's CPU time goes, by the samples of a burst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from stallscope.analyzers.analysis import CpuShare, CpuUse
from stallscope.analyzers.catalog import Catalog, Signature
from stallscope.analyzers.stacks import Shape, Stacks
from stallscope.model.capture import Capture

__all__ = ["use"]

SHARES = 8
LEAST_SHARE = 0.02


def use(
    captures: Sequence[Capture],
    stacks: Sequence[Stacks],
    catalog: Catalog,
    named: Container[str | None],
) -> CpuUse | None:
    """Return what the samples of these captures add up to; None where there are none.

    ``named``: the signatures that the captures show.
    """
    window = sum(capture.sample_window_ns for capture in captures)
    periods = [capture.sample_period_ns for capture in captures if capture.sample_period_ns]
    if not window or not periods:
        return None
    counts: Counter[tuple[str, str | None]] = Counter()
    known: dict[int, str | None] = {}
    signatures = [signature for signature in catalog.signatures if signature.id in named]
    for capture, found in zip(captures, stacks, strict=True):
        for sample, shape in zip(capture.samples, found.samples, strict=True):
            if id(shape) not in known:
                known[id(shape)] = _explained(shape, signatures)
            signature = known[id(shape)]
            counts[_place(shape, kernel=bool(sample.kernel_frames)), signature] += sample.count
    total = sum(counts.values())
    shares = tuple(
        CpuShare(where, round(count / total, 3), signature)
        for (where, signature), count in counts.most_common(SHARES)
        if count >= LEAST_SHARE * total
    )
    return CpuUse(
        samples=total,
        busy=round(total * periods[0] / window, 2),
        cpus=max(capture.sample_cpus for capture in captures),
        shares=shares,
        lost=sum(capture.samples_lost for capture in captures),
    )


def _explained(shape: Shape, signatures: Sequence[Signature]) -> str | None:
    """Return the signature that says what a thread on a CPU does: a holder's or busy work.

    One that spins for a lock does neither.
    """
    if shape.wait is not None and shape.wait.spins:
        return None
    for signature in signatures:
        if signature.certain_holder(shape.holder_of.get(signature.id, ())) is not None:
            return signature.id
        if signature.busy and signature in shape.waiter_of:
            return signature.id
    return None


def _place(shape: Shape, *, kernel: bool) -> str:
    """Name what a thread on a CPU does: for a spinning one its lock's user, else its function."""
    if shape.wait is not None and shape.depth < len(shape.frames):
        return f"{shape.wait.frame} < {shape.frames[shape.depth]}"
    named = [name for name in shape.names if name is not None]
    where = named[0] if named else (shape.frames[0] if shape.frames else "??")
    return f"{where} (in the kernel)" if kernel else where

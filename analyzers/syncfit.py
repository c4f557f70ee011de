# SPDX-License-Identifier: Apache-2.0
"""What one sync costs: time = N/R + K, fitted to the sums that the kernel kept of all syncs.

N: bytes that the sync had to write. K: the fixed cost of a sync, R: the rate of sequential writes.
The fit is published with its r², since the model is a claim that each storage has to confirm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

__all__ = ["LEAST_R2", "LEAST_SYNCS", "SyncCost", "SyncSums", "cost", "total"]

LEAST_R2 = 0.5
"""Below it, N explains less than half of the variance: K and R are not determined."""
LEAST_SYNCS = 10
_LEAST_SPREAD = 0.05
"""Standard deviation of N by its mean, below which N does not vary."""


class SyncSums(msgspec.Struct, frozen=True):
    """Sums over ended syncs: N in bytes, t in ns."""

    syncs: int = 0
    sum_t: float = 0.0
    sum_n: float = 0.0
    sum_nn: float = 0.0
    sum_nt: float = 0.0
    sum_tt: float = 0.0

    def __add__(self, other: SyncSums) -> SyncSums:
        return SyncSums(
            self.syncs + other.syncs,
            self.sum_t + other.sum_t,
            self.sum_n + other.sum_n,
            self.sum_nn + other.sum_nn,
            self.sum_nt + other.sum_nt,
            self.sum_tt + other.sum_tt,
        )


class SyncCost(msgspec.Struct, frozen=True):
    """What a sync costs. None is unknown."""

    syncs: int
    mean_ms: float | None = None
    deviation_ms: float | None = None
    """Standard deviation of the time of one sync."""
    mean_bytes: float | None = None
    k_ms: float | None = None
    """The fit's, where it is determined; else the mean time of a sync, which is K and N/R."""
    r_mb_s: float | None = None
    """10^6 bytes a second; None where the fit is not determined."""
    r2: float | None = None
    """None where N or t does not vary."""
    determined: bool = False
    why_not: str | None = None
    """Why the fit is not determined."""

    def time_ms(self, bytes_each: float) -> float | None:
        """Return the time of a sync of so many bytes; None: unknown."""
        if self.k_ms is None:
            return None
        return self.k_ms + (bytes_each / self.r_mb_s / 1e3 if self.r_mb_s else 0.0)


def total(sums: Iterable[SyncSums]) -> SyncSums:
    """Add the sums of several files."""
    return sum(sums, SyncSums())


def cost(sums: SyncSums) -> SyncCost:
    """Return K, R and r², or why they are not determined."""
    count = sums.syncs
    if count == 0:
        return SyncCost(0, why_not="no sync was seen")
    mean_n, mean_t = sums.sum_n / count, sums.sum_t / count
    # Variances of what was rounded can be below 0.
    var_n = max(0.0, sums.sum_nn / count - mean_n * mean_n)
    var_t = max(0.0, sums.sum_tt / count - mean_t * mean_t)
    both = sums.sum_nt / count - mean_n * mean_t
    r2 = None
    if var_n > 1e-12 * mean_n * mean_n and var_t > 1e-12 * mean_t * mean_t:
        r2 = min(1.0, both * both / var_n / var_t)
    mean = SyncCost(
        count,
        mean_ms=mean_t / 1e6,
        deviation_ms=math.sqrt(var_t) / 1e6,
        mean_bytes=mean_n,
        k_ms=mean_t / 1e6,
        r2=r2,
    )
    if count < LEAST_SYNCS:
        why = f"fewer than {LEAST_SYNCS} syncs"
    elif r2 is None or math.sqrt(var_n) < _LEAST_SPREAD * mean_n:
        why = "all syncs had as many bytes to write"
    elif r2 < LEAST_R2:
        why = f"r² is below {LEAST_R2}: the bytes do not explain the time"
    else:
        slope = both / var_n
        intercept = mean_t - slope * mean_n
        if slope > 0 and intercept >= 0:
            return msgspec.structs.replace(
                mean, k_ms=intercept / 1e6, r_mb_s=1e3 / slope, determined=True
            )
        why = "more bytes took no longer" if slope <= 0 else "the fixed cost came out below 0"
    return msgspec.structs.replace(mean, why_not=why)

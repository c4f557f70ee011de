# SPDX-License-Identifier: Apache-2.0
"""Whether two rates differ by chance: the exact conditional test for two Poisson counts.

Of ``a + b`` events in two times of observation each is in the first with the probability of the
first's share of the time, if the rates are equal. So ``a`` is binomial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["LEVEL", "by_chance", "p_value"]

LEVEL = 0.05
_NEGLIGIBLE = 1e-17


def p_value(a: int, b: int, time_a: float, time_b: float) -> float | None:
    """Return the probability of counts that are at least so unlikely, twice that of one side.

    None where one was not observed, or nothing was counted.
    """
    if time_a <= 0 or time_b <= 0 or a + b == 0:
        return None
    share = time_a / (time_a + time_b)
    if not 0 < share < 1:
        return None
    lower, upper = _tail(a + b, a, share), _tail(a + b, b, 1 - share)
    return min(1.0, 2 * min(lower, upper))


def _tail(n: int, k: int, p: float) -> float:
    """Return the probability of at most ``k`` of ``n``."""
    if k >= n:
        return 1.0
    mode = math.floor((n + 1) * p)
    if k > mode:  # the terms to add up would not get smaller
        return 1.0 - _tail(n, n - k - 1, 1 - p)
    term = math.exp(
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
    )
    total = 0.0
    for i in range(k, -1, -1):
        total += term
        term *= i / (n - i + 1) * (1 - p) / p
        if term <= total * _NEGLIGIBLE:
            break
    return min(1.0, total)


def by_chance(found: Sequence[float | None], level: float = LEVEL) -> list[bool | None]:
    """Return for each p whether it can be chance, where so many were compared: the method of
    Holm, so that with the probability ``level`` at most one of all is called real and is not."""
    known = sorted((p, place) for place, p in enumerate(found) if p is not None)
    answer: list[bool | None] = [None if p is None else True for p in found]
    for rank, (p, place) in enumerate(known):
        if p * (len(known) - rank) > level:
            break
        answer[place] = False
    return answer

# SPDX-License-Identifier: Apache-2.0
"""One random moment of each fault: each stall alerted once, and over only when it was."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.bench.agent_faultmoments import KINDS, Lane, one_moment
from tests.support.chance import SEED

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "waits", "mariadb"), pytest.mark.nightly]


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    made = Lane()
    yield made
    made.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stall_is_alerted_once_and_over_only_when_it_was(lane: Lane, kind: str) -> None:
    seed = random.Random(f"{SEED} {kind}").getrandbits(32)
    outcome = one_moment(lane, kind, seed, patient=True)
    found = outcome.judgement
    assert (found.once, found.only_when_over, outcome.leaks) == (True, True, ()), "\n".join(
        (f"seed {seed}", *found.wrong, *sorted(outcome.said))
    )

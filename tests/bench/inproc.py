# SPDX-License-Identifier: Apache-2.0
"""What the in-process library costs the server that it is in, and whether the server outlives
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench import inproc_load, inproc_locks, inproc_need, inproc_share, inproc_stack, soak
from tests.bench.probes import SERVERS, TESTS
from tests.bench.stats import Section, wanted

__all__ = ["SOAK_MINUTES", "sections"]

SOAK_MINUTES = 30.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    locks: inproc_locks.Sizes
    need: inproc_need.Sizes
    load: inproc_load.Plan


FULL = Sizes(
    locks=inproc_locks.FULL,
    need=inproc_need.FULL,
    load=inproc_load.Plan(servers=4, pairs=8, seconds=1, threads=16),
)
QUICK = Sizes(
    locks=inproc_locks.QUICK,
    need=inproc_need.QUICK,
    load=inproc_load.Plan(servers=2, pairs=5, seconds=0.7, threads=8),
)


def sections(
    server_name: str, quick: bool, only: Sequence[str], minutes: float = SOAK_MINUTES
) -> Iterator[Section]:
    """Measure and yield one table after the other; ``only`` picks them by id or its beginning."""
    sizes = QUICK if quick else FULL

    alone: dict[str, Callable[[], Section]] = {
        "lock": lambda: inproc_locks.free_section(sizes.locks),
        "transfer": lambda: inproc_stack.transfer_section(sizes.locks),
        "stack": lambda: inproc_stack.stack_section(sizes.locks),
        "contended-pass": lambda: inproc_locks.pass_section(sizes.locks),
        "contended-storm": lambda: inproc_locks.storm_section(sizes.locks),
        "memory": lambda: inproc_need.memory_section(sizes.need),
        "reader": lambda: inproc_need.reader_section(sizes.need),
    }
    throughput = {f"throughput-{test}": test for test in TESTS}
    names = wanted((*alone, "share", *throughput, "soak"), only)
    for name in names:
        if name in alone:
            yield alone[name]()
    if "share" in names:
        yield inproc_share.share_section(SERVERS[server_name], TESTS, sizes.load)
    if tests := [throughput[name] for name in names if name in throughput]:
        yield from inproc_load.server_sections(SERVERS[server_name], tests, sizes.load)
    if "soak" in only:
        yield soak.soak_section(minutes)

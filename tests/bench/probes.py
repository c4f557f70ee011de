# SPDX-License-Identifier: Apache-2.0
"""What the wait programs cost, how soon they report a wait, and whether what they count is
right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench import probe_cost, probe_exact, probe_latency, probe_poll, probe_programs
from tests.bench.stats import Section, wanted
from tests.bench.throughput import STORM_GOAL, Plan, server_section, storm_section
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer

__all__ = ["DURABLE", "SERVERS", "TESTS", "Sizes", "sections"]

SERVERS: dict[str, type[SqlServer]] = {"mariadb": MariaDB, "mysql97": MySQL97, "mysql55": MySQL55}
TESTS = ("oltp_point_select", "oltp_write_only")
# Each commit has to reach the disk, as it does by default.
DURABLE = "--innodb-flush-log-at-trx-commit=1"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    server: Plan
    storm: Plan
    load_threads: int
    latency: probe_latency.Sizes
    exact_runs: int
    cost: probe_cost.Sizes
    poll: probe_poll.Sizes


FULL = Sizes(
    server=Plan(pairs=10, peer_pairs=3, seconds=3),
    storm=Plan(pairs=10, peer_pairs=4, seconds=1, steady=False),
    load_threads=16,
    latency=probe_latency.FULL,
    exact_runs=20,
    cost=probe_cost.FULL,
    poll=probe_poll.FULL,
)
QUICK = Sizes(
    server=Plan(pairs=3, peer_pairs=1, seconds=2),
    storm=Plan(pairs=3, peer_pairs=1, seconds=0.5, steady=False),
    load_threads=8,
    latency=probe_latency.QUICK,
    exact_runs=3,
    cost=probe_cost.QUICK,
    poll=probe_poll.QUICK,
)


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure and yield one table after the other; ``only`` picks them by id or its beginning."""
    sizes = QUICK if quick else FULL

    alone: dict[str, Callable[[], Section]] = {
        "exact": lambda: probe_exact.exact_section(sizes.exact_runs),
        "cost-call": lambda: probe_cost.call_section(sizes.cost),
        "cost-poll-need": lambda: probe_poll.need_section(sizes.poll),
        "cost-poll-effect": lambda: probe_poll.effect_section(sizes.poll),
        "throughput-storm-1000": lambda: storm_section(1000, 1000, STORM_GOAL, sizes.storm),
        "throughput-storm-0": lambda: storm_section(0, 0, None, sizes.storm),
    }
    on_servers: dict[str, Callable[[SqlServer], Section]] = {
        "latency-event": lambda server: probe_latency.event_section(server, sizes.latency),
        "latency-capture": lambda server: probe_latency.capture_section(server, sizes.latency),
        "cost-need": lambda server: probe_cost.need_section(server, sizes.cost),
    }
    for test in TESTS:
        on_servers[f"cost-programs-{test}"] = programs_under(test, sizes)
    for test in TESTS:
        on_servers[f"throughput-{test}"] = throughput_of(test, sizes)
    names = wanted((*alone, *on_servers), only)
    for name in names:
        if name in alone:
            yield alone[name]()
    if not alone.keys() >= set(names):
        with SERVERS[server_name](DURABLE) as server:
            for name in names:
                if name in on_servers:
                    yield on_servers[name](server)


def programs_under(test: str, sizes: Sizes) -> Callable[[SqlServer], Section]:
    return lambda server: probe_programs.program_section(
        server, test, sizes.load_threads, sizes.cost.seconds
    )


def throughput_of(test: str, sizes: Sizes) -> Callable[[SqlServer], Section]:
    return lambda server: server_section(server, test, sizes.load_threads, sizes.server)

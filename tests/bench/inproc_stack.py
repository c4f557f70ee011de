# SPDX-License-Identifier: Apache-2.0
"""What the in-process library's copy of a stack costs beside an unwinding in the process, and what
the library adds to transfers that do not block."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from stallscope.collectors import rings as find_rings
from tests.bench import progress
from tests.bench.inproc_locks import OFF, WITH, WITHOUT, Sizes, with_agent
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.support.servers.inside import one_ring
from tests.support.targets import Target, target_path

__all__ = ["CALLS", "stack_section", "transfer_section"]

TRANSFER_GOAL_NS = 50.0
# Of tests/targets/transfer_costs.c and stack_costs.c.
TRANSFERS = {"read": "pread of 16 KiB from memory", "write": "pwrite of 16 KiB to memory"}
DEPTHS = (2, 10, 30)
CALLS = {
    "copy": "the library's copy",
    "known": "unw_backtrace of a place that it has unwound before",
    "unknown": "unw_backtrace of a new place",
}


def transfer_section(sizes: Sizes) -> Section:
    """Measure reads and writes of one thread, with and without the library in the same process."""
    measured: dict[str, dict[str, list[float]]] = {call: {} for call in TRANSFERS}
    for number in range(sizes.rounds):  # of new processes: where their memory is differs
        progress(f"transfers: round {number + 1} of {sizes.rounds}")
        with with_agent("transfer_costs") as (ours, rings):
            for state in (WITH, OFF):
                find_rings.switch(one_ring(rings), on=state == WITH)
                for call, of in measured.items():
                    answer = ours.ask(f"{call} {sizes.batches}")
                    if not answer["interposed"]:
                        raise BenchError("the library is not in the target")
                    of.setdefault(state, []).append(float(answer["added"]))
                    of.setdefault(WITHOUT, []).append(float(answer["without"]))
    rows, goals = [], []
    for call, title in TRANSFERS.items():
        cells: dict[str, Figure | str] = {WITHOUT: figure(measured[call][WITHOUT], "ns")}
        for state in (WITH, OFF):
            cells[f"added by {state}"] = figure(measured[call][state], "ns")
        rows.append(Row(title, cells))
        added = figure(measured[call][WITH], "ns").median
        text = f"{title}: {added:.0f} ns added, less than {TRANSFER_GOAL_NS:g} allowed"
        goals.append((text, added < TRANSFER_GOAL_NS))
    return Section(
        "transfer",
        f"CPU time of transfers that do not block, {sizes.rounds} processes",
        tuple(rows),
        ("pread and pwrite of each process are the library's",),
        tuple(goals),
    )


def stack_section(sizes: Sizes) -> Section:
    """Measure the copy of a stack, and libunwind, of the same stack."""
    title = "A copy of the stack, and libunwind's unw_backtrace with a warm cache, in one thread"
    if not target_path("stack_costs").exists():
        return Section("stack", title, (), left_out=("stack: install libunwind-dev",))
    with (
        tempfile.TemporaryDirectory(prefix="stallscope-rings-", dir="/dev/shm") as folder,
        Target("stack_costs", env={"STALLSCOPE_RUNTIME_DIR": folder}) as target,
    ):
        rows = [depth_row(target, depth, sizes) for depth in DEPTHS]
        held = target.ask("lock")
    if not held["copy"]:
        raise BenchError("the copy did not return while another thread had the loader's lock")
    return Section(
        "stack",
        title,
        tuple(rows),
        ("the copy returned while another thread had the loader's lock",),
        notes=held_notes(held),
    )


def depth_row(target: Target, depth: int, sizes: Sizes) -> Row:
    answers = [target.ask(f"compare {depth} {sizes.batches}") for _ in range(sizes.rounds)]
    name = f"{answers[0]['frames']} frames, {int(answers[0]['bytes']) / 1024:.1f} KiB"
    return Row(
        name,
        {
            "copy": figure(medians(answers, "copy"), "ns"),
            "comparison with the copy": figure(medians(answers, "compare"), "ns"),
            "unw_backtrace": figure(medians(answers, "unwind"), "ns"),
        },
    )


def medians(answers: Sequence[Mapping[str, Any]], of: str) -> list[float]:
    return [float(answer[of]) for answer in answers]


def held_notes(held: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which calls returned while another thread had the loader's lock."""
    return tuple(
        f"{what} {'returned' if held[call] else 'did NOT return'} while another thread was in a"
        " callback of dl_iterate_phdr, for 0.5 s"
        for call, what in CALLS.items()
    )

# SPDX-License-Identifier: Apache-2.0
"""What shows work of less than a millisecond at a time: captures, or samples of the CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from stallscope.model import capturefile
from stallscope.model.capture import Capture, Frame, Label
from tests.bench import progress
from tests.bench.snapshots import run
from tests.bench.stats import Row, Section
from tests.support.servers import ChildEnded, Late, Unavailable
from tests.support.stall import STALLS

__all__ = ["section"]


class Work(NamedTuple):
    """A function is in the stack of each thread that does it."""

    stall: str
    function: str


WORK = (
    Work("deadlock-check", "lock_deadlock_recursive"),
    Work("table-open-lock", "open_table_def"),
    Work("range-estimate", "btr_estimate_n_rows_in_range"),
)


def section(bursts: int) -> Section:
    """Count where the work is seen, in the same bursts."""
    rows, left_out = [], []
    for work in WORK:
        try:
            rows.append(_row(work, bursts))
        except (Unavailable, Late, ChildEnded) as error:
            left_out.append(f"{work.stall}: {error}")
    return Section(
        "sampling",
        f"What a thread iterator and a timer on the CPUs see of a stall's cause, {bursts} bursts",
        tuple(rows),
        left_out=tuple(left_out),
        notes=(
            "iterator: stacks of threads that were off the CPUs, verified or raced",
            "perf, in a capture: of threads that were on a CPU when the iterator came to them",
            "perf, in between: a timer of 1 kHz on each CPU, from one capture to the next",
        ),
    )


def _row(work: Work, bursts: int) -> Row:
    captures = iterated = sampled_in = seen = samples = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        for capture in _taken(work.stall, bursts, Path(name)):
            for moment in capture.moments:
                captures += 1
                doing = [t for t in moment.threads if _does(work, t.frames)]
                iterated += any(t.label is not Label.RUNNING for t in doing)
                sampled_in += any(t.label is Label.RUNNING for t in doing)
                samples += sum(sample.count for sample in moment.samples)
                seen += sum(s.count for s in moment.samples if _does(work, s.frames))
    return Row(
        f"{work.stall}: {work.function}",
        {
            "iterator": f"in {iterated} of {captures} captures",
            "perf, in a capture": f"in {sampled_in} of {captures} captures",
            "perf, in between": f"in {seen} of {samples} samples"
            f" ({100 * seen / max(1, samples):.0f} %)",
        },
    )


def _taken(stall: str, bursts: int, folder: Path) -> Iterable[Capture]:
    with STALLS[stall].started() as (server, made), made:
        for number in range(bursts):
            progress(f"verdict: sampling {stall}, burst {number + 1}")
            file = folder / f"{stall}-{number}.jsonl"
            run(server.pid, "--no-sql", "-o", str(file))
            yield capturefile.read(file)


def _does(work: Work, frames: Iterable[Frame]) -> bool:
    names = [frame.symbol or "" for frame in frames]  # of C++, perhaps mangled
    return any(work.function in name for name in names)

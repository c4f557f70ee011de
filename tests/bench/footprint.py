# SPDX-License-Identifier: Apache-2.0
"""What processes hold: memory, descriptors, BPF objects, mappings, threads; and how it grows."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tests.bench.stats import BenchError

__all__ = ["Bounds", "Footprint", "footprint", "growth_goals", "milestones"]

BPF = re.compile(r"anon_inode:\[?(?:bpf[-_]\w+|perf_event)\]?$")
"""Maps, programs, links, iterators and the events of uprobes."""


@dataclass(frozen=True)
class Footprint:
    """What some processes hold together."""

    processes: int = 0
    rss_kb: int = 0
    descriptors: int = 0
    bpf: int = 0
    """Descriptors of BPF maps, programs, links and perf events."""
    mappings: int = 0
    threads: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        return (
            f"{self.rss_kb / 1024:.1f} MiB, {self.descriptors} fds, {self.bpf} bpf,"
            f" {self.mappings} maps, {self.threads} threads"
        )


def footprint(pids: Iterable[int]) -> Footprint:
    """Return what these processes hold; one that has ended holds nothing."""
    total = Footprint()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += _one(Path("/proc") / str(pid))
    return total


def _one(folder: Path) -> Footprint:
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text(errors="replace").splitlines()
    )
    kinds: Counter[bool] = Counter()
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds[BPF.match(str(link.readlink())) is not None] += 1
    return Footprint(
        processes=1,
        rss_kb=int(status.get("VmRSS", "0 kB").split()[0]),
        descriptors=kinds.total(),
        bpf=kinds[True],
        mappings=len((folder / "maps").read_text(errors="replace").splitlines()),
        threads=int(status["Threads"]),
    )


@dataclass(frozen=True)
class Bounds:
    """By how much each may grow from the first milestone, when all is warm, to the last."""

    rss_share: float = 0.15
    rss_kb: int = 4096
    """The larger of the two counts."""
    descriptors: int = 4
    bpf: int = 0
    mappings: int = 16
    threads: int = 2


def milestones(samples: Sequence[Mapping[str, Footprint]]) -> list[int]:
    """Return the indices of the start, the quarters and the end."""
    last = len(samples) - 1
    if last < 4:
        raise BenchError(f"{len(samples)} samples are too few to see growth")
    return [0, *(round(last * quarter / 4) for quarter in (1, 2, 3)), last]


def growth_goals(
    samples: Sequence[Mapping[str, Footprint]], bounds: Bounds
) -> list[tuple[str, bool]]:
    """Compare the last quarter with the first one: medians, so that no single instant decides.

    What is loaded once belongs to the first quarter.
    """
    _, first, _, third, _ = milestones(samples)
    goals = []
    for role in samples[0]:
        before = _medians([sample[role] for sample in samples[max(first // 2, 1) : first + 1]])
        after = _medians([sample[role] for sample in samples[third:]])
        allowed = {
            "rss_kb": max(bounds.rss_kb, round(bounds.rss_share * before.rss_kb)),
            "descriptors": bounds.descriptors,
            "bpf": bounds.bpf,
            "mappings": bounds.mappings,
            "threads": bounds.threads,
        }
        grown = {key: getattr(after, key) - getattr(before, key) for key in allowed}
        growth = ", ".join(
            f"{key} {grown[key]:+} ({most} allowed)" for key, most in allowed.items()
        )
        goals.append(
            (
                f"{role}, last quarter against first: {growth}",
                all(grown[k] <= allowed[k] for k in grown),
            )
        )
    return goals


def _medians(found: Sequence[Footprint]) -> Footprint:
    """Return the (lower) median of each figure."""
    if not found:
        raise BenchError("no samples of a quarter")
    middle = (len(found) - 1) // 2
    return Footprint(
        *(sorted(getattr(f, x.name) for f in found)[middle] for x in fields(Footprint))
    )

# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of the agent's processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench.tools import tree_cpu_ns
from tests.support.agents import AgentProcess

__all__ = ["cpu_ns", "parent", "parts_mb", "pss_mb"]


def cpu_ns(watch: AgentProcess) -> dict[str, int]:
    """Return the CPU time so far of the agent's own process, and of the probe with its worker."""
    members = watch.members()
    own = sum(
        int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{watch.pid}/task").iterdir()
    )
    probes = [pid for pid in members[1:] if parent(pid) == watch.pid]
    return {"agent": own, "probe": sum(tree_cpu_ns(pid) for pid in probes)}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pss_mb(pids: Sequence[int], part: str = "Pss") -> float:
    """Return the memory of these processes, or a part of it; what several share counts once."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{part}:"):
                total += int(line.split()[1])
    return total / 1024


def parts_mb(watch: AgentProcess) -> dict[str, float]:
    members = watch.members()
    return {"agent": pss_mb(members[:1]), "probe": pss_mb(members[1:])}

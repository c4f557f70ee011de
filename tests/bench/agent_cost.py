# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of the agent's processes."""

from __future__ import annotations

from tests.support.agents import AgentProcess
from tests.support.usage import children, pss_mb, threads_cpu_ns, tree_cpu_ns

__all__ = ["cpu_ns", "parts_mb"]


def cpu_ns(watch: AgentProcess) -> dict[str, int]:
    """Return the CPU time so far of the agent's own process, and of the probe with its worker."""
    probes = sum(map(tree_cpu_ns, children(watch.pid)))
    return {"agent": threads_cpu_ns(watch.pid), "probe": probes}


def parts_mb(watch: AgentProcess) -> dict[str, float]:
    members = watch.members()
    return {"agent": pss_mb(members[:1]), "probe": pss_mb(members[1:])}

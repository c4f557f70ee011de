# SPDX-License-Identifier: Apache-2.0
"""Rules about the host's memory, where it decides when files are written."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.disks.advice import (
    Finding,
    fine,
    quoted,
    sized,
    sysctl,
    unknown,
    wrong,
)
from stallscope.model.diskfacts import DiskFacts, as_int

__all__ = ["dirty", "limits", "reclaim", "swapping"]

MOST_BACKGROUND = 1 << 30
MOST_DIRTY = 4 << 30
MOST_SWAPPINESS = 10
_VM = "/proc/sys/vm"


def dirty(facts: DiskFacts) -> Iterator[Finding]:
    """How much the page cache collects before it writes, and before it stops writers."""
    available = as_int(facts.kernel.get("/proc/meminfo MemAvailable"))
    now = _limit(facts, "dirty_background", available)
    stop = _limit(facts, "dirty", available)
    if now is None or stop is None:
        yield unknown("dirty-pages", "when the kernel writes dirty pages")
        return
    what = (
        f"the kernel begins to write at {sized(now)} of dirty pages, and stops writers at"
        f" {sized(stop)}"
    )
    sources = tuple(f"{_VM}/{name}" for name in _names(facts))
    if now > MOST_BACKGROUND or stop > MOST_DIRTY:
        fix, keep = sysctl(dirty_background_bytes=256 << 20, dirty_bytes=1 << 30)
        yield wrong(
            "dirty-pages",
            "speed",
            what,
            "What goes through the page cache (binlog, redo log without O_DIRECT, temporary files,"
            " dumps) piles up and is written at once; syncs wait behind it. At the second limit"
            " every write(2) sleeps until the disk has caught up.",
            fix,
            keep,
            *sources,
        )
    else:
        yield fine("dirty-pages", what, *sources)


def _limit(facts: DiskFacts, name: str, available: int | None) -> int | None:
    """Return a limit in bytes; of a share, from the memory that is available now."""
    count = as_int(facts.kernel.get(f"{_VM}/{name}_bytes"))
    if count:
        return count
    share = as_int(facts.kernel.get(f"{_VM}/{name}_ratio"))
    return None if share is None or available is None else available * share // 100


def _names(facts: DiskFacts) -> Iterator[str]:
    for name in ("dirty_background", "dirty"):
        count = as_int(facts.kernel.get(f"{_VM}/{name}_bytes"))
        yield f"{name}_bytes" if count else f"{name}_ratio"


def swapping(facts: DiskFacts) -> Iterator[Finding]:
    """Whether the kernel prefers swapping the buffer pool to dropping cached files."""
    path = f"{_VM}/swappiness"
    value = as_int(facts.kernel.get(path))
    if value is None:
        yield unknown("swappiness", "vm.swappiness", None, path)
    elif value > MOST_SWAPPINESS:
        fix, keep = sysctl(swappiness=1)
        yield wrong(
            "swappiness",
            "speed",
            f"vm.swappiness = {value}",
            "To keep cached files (binlogs, dumps), the kernel swaps out parts of the buffer pool."
            " A thread that needs such a page reads it from the disk, with latches held.",
            fix,
            keep,
            path,
        )
    else:
        yield fine("swappiness", f"vm.swappiness = {value}", path)


def reclaim(facts: DiskFacts) -> Iterator[Finding]:
    """Whether the kernel frees cache of one node although another has memory."""
    path = f"{_VM}/zone_reclaim_mode"
    value = as_int(facts.kernel.get(path))
    if value is None:
        return  # a kernel without NUMA
    if value:
        fix, keep = sysctl(zone_reclaim_mode=0)
        yield wrong(
            "zone-reclaim",
            "speed",
            f"vm.zone_reclaim_mode = {value}",
            "When one NUMA node is full, threads there free cached pages, and may write them,"
            " although other nodes have memory.",
            fix,
            keep,
            path,
        )
    else:
        yield fine("zone-reclaim", "vm.zone_reclaim_mode = 0", path)


def limits(facts: DiskFacts) -> Iterator[Finding]:
    """Whether the server's cgroup has a limit on its disk."""
    found = [(path, text) for path, text in facts.kernel.items() if path.endswith("/io.max")]
    for path, text in found:
        rules = [
            line
            for line in text.splitlines()
            if any(word.partition("=")[2] not in ("", "max") for word in line.split()[1:])
        ]
        if rules:
            yield wrong(
                "disk-limit",
                "speed",
                f"the server's cgroup limits its disk: {rules[0]}",
                "Requests above the limit wait in the kernel, syncs of commits too: the disk looks"
                " idle, and the server stalls.",
                f"echo '{_lifted(rules[0])}' | sudo tee {quoted(path)}",
                "IOReadBandwidthMax, IOWriteBandwidthMax and IO…IOPSMax of the systemd unit",
                path,
            )
        else:
            yield fine("disk-limit", "the server's cgroup has no limit", path)


def _lifted(rule: str) -> str:
    found = rule.split()[0]
    number = "".join(c for c in found if c.isdigit() or c == ":")
    return " ".join([number, *(f"{name}=max" for name in ("rbps", "wbps", "riops", "wiops"))])

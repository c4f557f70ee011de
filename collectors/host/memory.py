# SPDX-License-Identifier: Apache-2.0
"""Memory of the host: page cache, dirty pages, reclaim; /proc/meminfo and /proc/vmstat."""

from __future__ import annotations

import contextlib
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.collecting import HostCollector, as_number

__all__ = ["Memory"]

_KB = 1024
_MEMINFO = {
    b"MemTotal": "total_bytes",
    b"MemFree": "free_bytes",
    b"MemAvailable": "available_bytes",
    b"Cached": "page_cache_bytes",
    b"Dirty": "dirty_bytes",
    b"Writeback": "writeback_bytes",
    b"AnonPages": "anonymous_bytes",
    b"SReclaimable": "slab_reclaimable_bytes",
    b"SwapTotal": "swap_total_bytes",
    b"SwapFree": "swap_free_bytes",
    b"Committed_AS": "committed_bytes",
}
_VMSTAT = {
    b"pswpin": "swapped_in",
    b"pswpout": "swapped_out",
    b"pgmajfault": "major_faults",
    b"pgscan_kswapd": "scanned_kswapd",
    b"pgscan_direct": "scanned_direct",
    b"pgsteal_kswapd": "reclaimed_kswapd",
    b"pgsteal_direct": "reclaimed_direct",
    b"nr_dirty_threshold": "dirty_threshold_pages",
    b"compact_stall": "compaction_stalls",
    b"oom_kill": "oom_kills",
}
# Newer kernels split these by zone, or by kind of refault; the sum works on all kernels.
_SUMS = {
    b"pgscan_direct_": "scanned_direct",
    b"pgscan_kswapd_": "scanned_kswapd",
    b"pgsteal_direct_": "reclaimed_direct",
    b"pgsteal_kswapd_": "reclaimed_kswapd",
    b"allocstall": "direct_reclaims",
    b"workingset_refault": "refaults",
}
_NOT_SUMMED = (b"pgscan_direct_throttle",)


class Memory(HostCollector):
    """Sizes in bytes, and counters of pages or events, as far as this kernel has them."""

    name = "memory"

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        super().__init__()
        self._meminfo = self.keep(proc / "meminfo", 16_384)
        self._vmstat = self.keep(proc / "vmstat", 65_536)
        self._names: dict[bytes, str | None] = {}

    def read(self, clock_ns: int) -> dict[str, float]:
        values: dict[str, float] = {}
        for line in self._meminfo.read().splitlines():
            key, _, rest = line.partition(b":")
            if key in _MEMINFO and rest:
                values["memory." + _MEMINFO[key]] = as_number(rest.split()[0]) * _KB
        if not values:
            raise StallscopeError("/proc/meminfo has no known number")
        if "memory.swap_total_bytes" in values and "memory.swap_free_bytes" in values:
            free = values.pop("memory.swap_free_bytes")
            values["memory.swap_used_bytes"] = values["memory.swap_total_bytes"] - free
        with contextlib.suppress(StallscopeError):
            self._read_events(values)
        return values

    def _read_events(self, values: dict[str, float]) -> None:
        for line in self._vmstat.read().splitlines():
            key, _, rest = line.partition(b" ")
            try:
                name = self._names[key]
            except KeyError:
                name = self._names[key] = _event(key)
            if name is not None:
                values[name] = values.get(name, 0.0) + as_number(rest)


def _event(key: bytes) -> str | None:
    name = _VMSTAT.get(key)
    if name is None and key not in _NOT_SUMMED:
        name = next((sum_ for begin, sum_ in _SUMS.items() if key.startswith(begin)), None)
    return None if name is None else f"memory.{name}"

# SPDX-License-Identifier: Apache-2.0
"""The table of all rules about storage, and their application to facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stallscope.analyzers.disks import (
    alignment,
    devices,
    filesystems,
    host,
    mounts,
    server,
)
from stallscope.analyzers.disks.advice import Finding, fine, unknown
from stallscope.model.diskfacts import Device, DiskFacts, FileSystem

__all__ = ["DEVICE_RULES", "MOUNT_RULES", "SERVER_RULES", "advise"]

DEVICE_RULES: tuple[Callable[[DiskFacts, Device], Iterator[Finding]], ...] = (
    devices.scheduler,
    devices.rotational,
    devices.cache,
    devices.depth,
    devices.readahead,
    devices.throttling,
    devices.split,
    devices.statistics,
    devices.loop,
    devices.encryption,
    devices.snapshot,
    devices.raid,
    alignment.offset,
)
MOUNT_RULES: tuple[Callable[[DiskFacts, FileSystem], Iterator[Finding]], ...] = (
    mounts.barriers,
    mounts.synchronous,
    mounts.access_times,
    mounts.discard,
    mounts.journaled_data,
    mounts.unordered_data,
    mounts.network,
    filesystems.blocks,
    filesystems.copies,
    filesystems.extents,
    filesystems.journal,
    filesystems.errors,
    filesystems.log_size,
    filesystems.preallocation,
    filesystems.layers,
    filesystems.memory,
    filesystems.space,
    alignment.stripe,
)
SERVER_RULES: tuple[Callable[[DiskFacts], Iterator[Finding]], ...] = (
    server.direct_io,
    server.doublewrite,
    server.write_ahead,
    server.redo_size,
    server.sharing,
    host.dirty,
    host.swapping,
    host.reclaim,
    host.limits,
)
_RISKS = {"loss": 0, "space": 1, "speed": 2, None: 3}
_ORDER = {"degraded": 0, "unknown": 1, "ok": 2}


def advise(facts: DiskFacts) -> tuple[Finding, ...]:
    """Return what was checked, then what is wrong (what loses data first), what is not known, and
    what is as it should be."""
    found = [
        finding
        for mount in facts.mounts.values()
        for rule in MOUNT_RULES
        for finding in rule(facts, mount)
    ]
    for device in facts.devices.values():
        for of_device in DEVICE_RULES:
            found += of_device(facts, device)
    for of_server in SERVER_RULES:
        found += of_server(facts)
    found += (unknown("facts", text) for text in facts.missing)
    # A rule can meet the same subject from two sides.
    found = list(dict.fromkeys(found))
    found.sort(key=lambda finding: (_ORDER[finding.status], _RISKS[finding.risk]))
    return (*_checked(facts), *found)


def _checked(facts: DiskFacts) -> Iterator[Finding]:
    """Say which directories, mounts and devices were checked."""
    for place in facts.places:
        mount = facts.mount_of(place)
        where = f"{place.role} {place.path}"
        if mount is None or place.why is not None:
            yield unknown(
                "place", f"what {where} is on: {place.why or 'no mount has it'}", None, place.origin
            )
            continue
        stack = " on ".join(_named(device) for device in facts.stack(mount))
        kind = f"{mount.kind} at {mount.point}"
        shown = f" on {stack}" if stack else f" (from {mount.device}; no block device of this host)"
        yield fine("place", f"{where}: {kind}{shown}", place.origin, mount.source)


def _named(device: Device) -> str:
    name = device.texts.get("dm/name")
    if name is not None:
        return f"{device.name} ({name})"
    if device.kind in ("md", "loop"):
        of = device.texts.get("md/level") or device.texts.get("loop/backing_file", "")
        return f"{device.name} ({of})" if of else device.name
    return device.name

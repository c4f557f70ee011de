# SPDX-License-Identifier: Apache-2.0
"""Block devices, and the devices that they are made of; /sys/dev/block, /sys/block."""

from __future__ import annotations

import os
from collections.abc import Callable

from stallscope.collectors.disks.tree import Tree
from stallscope.model.diskfacts import Device

__all__ = ["MAX_DEVICES", "by_name", "walk"]

MAX_DEVICES = 64
"""The most devices below all mounts together."""

# Documentation/ABI/stable/sysfs-block; the rest is of dm, md, loop and SCSI.
_FILES = (
    "alignment_offset",
    "dm/name",
    "dm/uuid",
    "loop/backing_file",
    "loop/dio",
    "md/array_state",
    "md/chunk_size",
    "md/degraded",
    "md/level",
    "md/raid_disks",
    "md/stripe_cache_size",
    "md/sync_action",
    "partition",
    "device/model",
    "device/queue_depth",
    "queue/fua",
    "queue/iostats",
    "queue/logical_block_size",
    "queue/max_sectors_kb",
    "queue/minimum_io_size",
    "queue/nr_requests",
    "queue/optimal_io_size",
    "queue/physical_block_size",
    "queue/read_ahead_kb",
    "queue/rotational",
    "queue/scheduler",
    "queue/wbt_lat_usec",
    "queue/write_cache",
    "ro",
    "size",
    "start",
)
_SCSI = "device/scsi_disk"


def walk(
    tree: Tree, folders: list[str], backing: Callable[[str], tuple[str, tuple[str, ...]] | None]
) -> dict[str, Device]:
    """Return the devices in these folders of /sys, and all below them, by name.

    ``backing``: for the path of a loop device's file, its mount point and the folders of the
    devices of that mount.
    """
    found: dict[str, Device] = {}
    todo = list(folders)
    while todo and len(found) < MAX_DEVICES:
        folder = todo.pop(0)
        name = os.path.basename(folder)
        if name in found:
            continue
        device, below = _read(tree, folder, name)
        if device.kind == "loop" and (file := device.texts.get("loop/backing_file")):
            of = backing(file)
            if of is not None:
                device = _with_backing(device, of[0])
                below = [*below, *of[1]]
        found[name] = device
        todo += below
    return found


def _with_backing(device: Device, point: str) -> Device:
    return Device(device.name, device.path, device.kind, device.texts, device.below, backing=point)


def _read(tree: Tree, folder: str, name: str) -> tuple[Device, list[str]]:
    texts = {}
    for file in _FILES:
        text = tree.text(f"{folder}/{file}")
        if text is not None:
            texts[file] = text
    for address in tree.names(f"{folder}/{_SCSI}")[:1]:
        key = f"{_SCSI}/{address}/cache_type"
        text = tree.text(f"{folder}/{key}")
        if text is not None:
            texts[key] = text
    below = []
    if "partition" in texts:
        below = [os.path.dirname(folder)]
    else:
        for slave in tree.names(f"{folder}/slaves"):
            real = tree.real(f"{folder}/slaves/{slave}")
            if real is not None:
                below.append(real)
    names = tuple(os.path.basename(path) for path in below)
    return Device(name, folder, _kind(texts), texts, names), below


def _kind(texts: dict[str, str]) -> str:
    if "partition" in texts:
        return "partition"
    for kind in ("dm", "md", "loop"):
        if any(key.startswith(f"{kind}/") for key in texts):
            return kind
    return "disk"


def by_name(tree: Tree, device: str) -> str | None:
    """Return the folder in /sys of a path below /dev."""
    real = tree.real(device)
    name = os.path.basename(real if real is not None else device)
    # A name of /dev has ! for each / in /sys.
    for folder in (f"/sys/class/block/{name}", f"/sys/block/{name}"):
        found = tree.real(folder)
        if found is not None:
            return found
    for block in tree.names("/sys/block"):
        if block.startswith("dm-") and tree.text(f"/sys/block/{block}/dm/name") == name:
            return tree.real(f"/sys/block/{block}")
    return None

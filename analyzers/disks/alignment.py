# SPDX-License-Identifier: Apache-2.0
"""Rules about where blocks lie: partitions against sectors, file systems against stripes."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.disks.advice import (
    Finding,
    fine,
    fstab,
    in_fstab,
    node,
    quoted,
    remount,
    sized,
    unknown,
    wrong,
)
from stallscope.model.diskfacts import Device, DiskFacts, FileSystem, as_int

__all__ = ["offset", "stripe"]

_SECTOR = 512
_MIB = 1 << 20


def offset(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """A partition that begins in the middle of a block."""
    said = device.number("alignment_offset")
    if said is not None and said != 0:
        yield wrong(
            "alignment",
            "speed",
            f"{device.name} is not aligned to the blocks below it"
            + ("" if said < 0 else f" ({said} bytes off)"),
            "Each page touches one block more: the disk reads and writes back both ends.",
            f"sudo parted /dev/{quoted(device.name)} align-check optimal 1; make it again from"
            " 1 MiB on, and copy the data",
            None,
            device.source("alignment_offset"),
        )
        return
    start = device.number("start")
    if device.kind != "partition" or start is None:
        if said == 0 and device.kind != "partition":
            yield fine("alignment", f"{device.name}: aligned", device.source("alignment_offset"))
        return
    disk = facts.devices.get(device.below[0]) if device.below else None
    block = (disk.number("queue/physical_block_size") if disk else None) or 512
    unit = (disk.number("queue/optimal_io_size") if disk else None) or 0
    begin = start * _SECTOR
    source = device.source("start")
    # A stripe that is no power of two (raid5 of 4 disks) is no multiple of 1 MiB.
    if begin % block or (unit and begin % unit and begin % _MIB):
        which = f"blocks of {sized(block)}" if begin % block else f"stripes of {sized(unit)}"
        number = device.texts.get("partition", "1")
        yield wrong(
            "alignment",
            "speed",
            f"{device.name} begins at byte {begin}, between the {which} of its disk",
            "Each page touches one block more: the disk reads the others to write them back, and a"
            " loss of power can tear two pages.",
            f"sudo parted {quoted('/dev/' + device.below[0])} align-check optimal {number}; make"
            " the partition again from 1 MiB on, and copy the data",
            None,
            source,
        )
    else:
        yield fine("alignment", f"{device.name}: begins at {sized(begin)}", source)


def stripe(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """A file system on a striped array must know the stripe."""
    if mount.kind not in ("ext4", "xfs"):
        return
    unit, width, source = _array(facts, mount)
    if not unit:
        return
    if mount.kind == "ext4":
        found = _ext4(mount)
        block = mount.block_bytes or 4096
        want = width // block
        if found is None:
            yield unknown("stripe", f"the stripe that {mount.point} was made for")
        elif found * block not in (unit, width):
            yield wrong(
                "stripe",
                "speed",
                f"{mount.point} (ext4) has stripe={found} blocks, the array below {sized(width)}",
                "Extents begin anywhere: writes of whole stripes become parts of two, which a"
                " raid5 or raid6 has to read first.",
                remount(mount, f"stripe={want}"),
                f"sudo tune2fs -E stride={unit // block},stripe_width={want} {node(mount)}",
                mount.source,
                source,
            )
        else:
            yield fine("stripe", f"{mount.point}: stripe={found} blocks", mount.source, source)
        return
    has = mount.stripe_bytes
    if has is None:
        yield unknown(
            "stripe",
            f"the stripe that {mount.point} was made for",
            f"sudo xfs_info {quoted(mount.point)}",
        )
    elif has != unit or mount.width_bytes != width:
        shown = (
            f"sunit {sized(has)}, swidth {sized(mount.width_bytes or 0)}" if has else "no stripe"
        )
        options = f"sunit={unit // 512},swidth={width // 512}"
        yield wrong(
            "stripe",
            "speed",
            f"{mount.point} (XFS) was made for {shown}; the array below has chunks of"
            f" {sized(unit)}, {sized(width)} a stripe",
            "Files and the log begin between stripes: large writes become parts of two, which a"
            " raid5 or raid6 has to read first.",
            in_fstab(mount, options),
            fstab(mount, options),
            f"XFS_IOC_FSGEOMETRY of {mount.point}",
            source,
        )
    else:
        yield fine(
            "stripe",
            f"{mount.point}: {sized(unit)} of {sized(width)}",
            f"XFS_IOC_FSGEOMETRY of {mount.point}",
            source,
        )


def _ext4(mount: FileSystem) -> int | None:
    if "stripe" in mount.options:
        return as_int(mount.options["stripe"])
    text = mount.text("options")
    if text is None:
        return None
    found = [line for line in text[1].split() if line.startswith("stripe=")]
    return as_int(found[0].partition("=")[2]) if found else 0


def _array(facts: DiskFacts, mount: FileSystem) -> tuple[int, int, str]:
    """Return chunk and stripe of the first array below, in bytes; 0 where there is none."""
    for device in facts.stack(mount):
        chunk, disks = device.number("md/chunk_size"), device.number("md/raid_disks")
        level = device.texts.get("md/level", "")
        if chunk and disks:
            parity = {"raid0": 0, "raid4": 1, "raid5": 1, "raid6": 2}.get(level)
            if parity is not None and disks > parity:
                return chunk, chunk * (disks - parity), device.source("md/chunk_size")
            return 0, 0, ""
        unit = device.number("queue/minimum_io_size")
        width = device.number("queue/optimal_io_size")
        striped = unit and width and width > unit >= 8192 and width % unit == 0
        if striped and device.kind in ("disk", "dm") and not device.below:
            return int(unit or 0), int(width or 0), device.source("queue/optimal_io_size")
    return 0, 0, ""

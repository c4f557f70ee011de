# SPDX-License-Identifier: Apache-2.0
"""A server on a disk that nothing is wrong with; tests change one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stallscope.model.diskfacts import Device, DiskFacts, FileSystem, Place

__all__ = ["GOOD", "changed"]

_EXT4 = "rw\ndata=ordered\nbarrier\nerrors=remount-ro\nstripe=0"

_DISK = Device(
    name="sda",
    path="/sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda",
    kind="disk",
    texts={
        "alignment_offset": "0",
        "device/queue_depth": "32",
        "device/scsi_disk/0:0:0:0/cache_type": "write back",
        "queue/fua": "1",
        "queue/iostats": "1",
        "queue/max_sectors_kb": "1280",
        "queue/minimum_io_size": "4096",
        "queue/nr_requests": "256",
        "queue/optimal_io_size": "0",
        "queue/physical_block_size": "4096",
        "queue/read_ahead_kb": "128",
        "queue/rotational": "0",
        "queue/scheduler": "[none] mq-deadline kyber bfq",
        "queue/wbt_lat_usec": "2000",
        "queue/write_cache": "write back",
    },
)
_PARTITION = Device(
    name="sda1",
    path=f"{_DISK.path}/sda1",
    kind="partition",
    texts={"alignment_offset": "0", "partition": "1", "start": "2048"},
    below=("sda",),
)
_MOUNT = FileSystem(
    point="/data",
    kind="ext4",
    device="/dev/sda1",
    options={"rw": "", "relatime": ""},
    source="/proc/42/mountinfo",
    devices=("sda1",),
    block_bytes=4096,
    size_bytes=100 << 30,
    free_bytes=50 << 30,
    inodes=6_000_000,
    free_inodes=5_000_000,
    texts={"/proc/fs/ext4/sda1/options": _EXT4, "/sys/fs/ext4/sda1/errors_count": "0"},
)
_PLACE = Place(
    role="data",
    path="/data/mysql",
    origin="@@datadir",
    mount="/data",
    extents=True,
    journaled=False,
    cluster_bytes=4096,
    direct=True,
    file="ibdata1",
)
GOOD = DiskFacts(
    places=(_PLACE, msgspec.structs.replace(_PLACE, role="redo", origin="the default")),
    mounts={"/data": _MOUNT},
    devices={"sda": _DISK, "sda1": _PARTITION},
    kernel={
        "/proc/sys/vm/dirty_background_bytes": "0",
        "/proc/sys/vm/dirty_background_ratio": "1",
        "/proc/sys/vm/dirty_bytes": "0",
        "/proc/sys/vm/dirty_ratio": "5",
        "/proc/sys/vm/swappiness": "1",
        "/proc/sys/vm/zone_reclaim_mode": "0",
        "/proc/meminfo MemTotal": str(64 << 30),
        "/proc/meminfo MemAvailable": str(60 << 30),
        "/sys/fs/cgroup/system.slice/mariadb.service/io.max": "",
    },
    variables={
        "datadir": "/data/mysql",
        "innodb_doublewrite": "ON",
        "innodb_flush_method": "O_DIRECT",
        "innodb_flush_neighbors": "0",
        "innodb_log_file_size": str(2 << 30),
        "innodb_log_write_ahead_size": "4096",
        "innodb_page_size": "16384",
    },
    variables_from="SHOW GLOBAL VARIABLES",
    status={"Innodb_os_log_written": 1e9, "Uptime": 86_400.0},
    family="mariadb",
)


def changed(
    *,
    disk: Mapping[str, str | None] | None = None,
    partition: Mapping[str, str] | None = None,
    options: str | None = None,
    ext4: str | None = None,
    kernel: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    status: Mapping[str, float] | None = None,
    mount: Mapping[str, Any] | None = None,
    place: Mapping[str, Any] | None = None,
    device: Mapping[str, Any] | None = None,
) -> DiskFacts:
    """Return the good facts with these changes; a text None is one that cannot be read."""
    texts = {**_DISK.texts, **(disk or {})}
    of_disk = msgspec.structs.replace(
        _DISK,
        texts={name: text for name, text in texts.items() if text is not None},
        **(device or {}),
    )
    of_partition = msgspec.structs.replace(
        _PARTITION, texts={**_PARTITION.texts, **(partition or {})}, below=(of_disk.name,)
    )
    of_mount = msgspec.structs.replace(_MOUNT, **(mount or {}))
    if options is not None:
        pairs = (word.partition("=") for word in options.split(","))
        named = {name: value for name, _, value in pairs}
        of_mount = msgspec.structs.replace(of_mount, options=named)
    if ext4 is not None:
        made = {**_MOUNT.texts, "/proc/fs/ext4/sda1/options": ext4.replace(",", "\n")}
        of_mount = msgspec.structs.replace(of_mount, texts=made)
    point = of_mount.point
    first = msgspec.structs.replace(_PLACE, mount=point, **(place or {}))
    return msgspec.structs.replace(
        GOOD,
        places=(first, msgspec.structs.replace(first, role=(place or {}).get("role", "redo"))),
        mounts={point: of_mount},
        devices={of_disk.name: of_disk, "sda1": of_partition},
        kernel={**GOOD.kernel, **(kernel or {})},
        variables={**GOOD.variables, **(variables or {})},
        status=GOOD.status if status is None else status,
    )

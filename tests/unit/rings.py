# SPDX-License-Identifier: Apache-2.0
"""Rings as libstallscope.so makes them, for tests of what reads and writes their headers."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from stallscope.model import ringfile
from stallscope.model.waitkinds import SOURCE_LOST, THRESHOLDS

__all__ = ["made", "of_this_process"]

PAGE = 4096
SLOTS = 8


def made(
    path: Path,
    *,
    pid: int = 4711,
    start_time: int = 1234,
    start_stack: int = 0,
    namespace: int = 0,
    created_ns: int = 5_000_000_000,
    created_wall_ns: int = 1_795_000_000_000_000_000,
    boot_id: str = "",
    comm: bytes = b"mysqld",
    enabled: bool = True,
    threshold_ns: int = 100_000_000,
    ended: bool = False,
    threads: Sequence[tuple[int, int]] = ((4711, 2), (4712, 7)),
    lost: Sequence[int] = (),
    slots: int = SLOTS,
    version: int = ringfile.VERSION,
) -> Path:
    """Write a ring whose threads are (tid, seq); its parts behind the slots are empty."""
    slots_at = PAGE
    size = slots_at + PAGE + 7 * PAGE
    data = bytearray(size)
    ringfile.CONSTANT.pack_into(
        data, 0, ringfile.MAGIC, version, ringfile.SIZE, size,
        *(slots_at + PAGE * part for part in range(6)),
        slots, 512, 64, 64, 512, PAGE,
        pid, os.getuid(), start_time, namespace, created_ns, created_wall_ns,
        boot_id.encode(), comm, b"/usr/sbin/mysqld", b"0.1.0",
        start_stack,
    )  # fmt: skip
    thresholds = [threshold_ns] * len(THRESHOLDS)
    ringfile.COMMANDS.pack_into(data, ringfile.COMMANDS_AT, enabled, 0, *thresholds)
    losses = [*lost, *[0] * (len(SOURCE_LOST) - len(lost))]
    live = (2 if ended else 1, len(threads), 0, 0, 987, *losses)
    ringfile.LIVE.pack_into(data, ringfile.LIVE_AT, *live)
    ringfile.HEAD.pack_into(data, ringfile.HEAD_AT, 17)
    for number, (tid, seq) in enumerate(threads):
        at = slots_at + number * ringfile.SLOT_SIZE
        struct.pack_into("=I", data, at, seq)
        struct.pack_into("=i", data, at + ringfile.SLOT_TID_AT, tid)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def of_this_process(folder: Path, *, created_ns: int = 5_000_000_000, **more: object) -> Path:
    """Make the ring that this process would have."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    path = folder / f"{os.getpid()}-{created_ns:x}{ringfile.SUFFIX}"
    return made(
        path,
        pid=os.getpid(),
        start_time=int(stat[19]),
        start_stack=int(stat[25]),
        namespace=os.stat("/proc/self/ns/pid").st_ino,
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        created_ns=created_ns,
        **more,  # type: ignore[arg-type]
    )

# SPDX-License-Identifier: Apache-2.0
"""Rings as libstallscope.so makes them, written by a test: each field as it is wanted."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from stallscope.model.rings import SUFFIX
from stallscope.model.waitkinds import SOURCE_LOST, THRESHOLDS

__all__ = [
    "COMMANDS",
    "COMMANDS_AT",
    "CONSTANT",
    "SIZE",
    "THRESHOLDS_AT",
    "VERSION",
    "WORDS",
    "made",
    "of_this_process",
]

VERSION = 2
PAGE = 4096
SLOTS = 8
PART = 16 * PAGE
"""Of the file, for each array."""


def _aligned(offset: int) -> int:
    return (offset + 63) // 64 * 64


# struct stall_ring_header of inproc/ring.h, in which the probe finds each field again.
CONSTANT = struct.Struct("=8s2I7Q6IiI4Q40s16s256s16sQ2I")
COMMANDS = struct.Struct("=II13Q")
LIVE = struct.Struct("=4IQ11Q")
HEAD = struct.Struct("=Q")
ROOM = 32
"""For kinds, and for causes of loss: version 1 had them within COMMANDS and LIVE."""
WORDS = struct.Struct(f"={ROOM}Q")
COMMANDS_AT = _aligned(CONSTANT.size)
LIVE_AT = _aligned(COMMANDS_AT + COMMANDS.size)
HEAD_AT = _aligned(LIVE_AT + LIVE.size)
THRESHOLDS_AT = _aligned(HEAD_AT + HEAD.size)
LOST_AT = _aligned(THRESHOLDS_AT + WORDS.size)
SIZE = _aligned(LOST_AT + WORDS.size)
SLOT_SIZE = 192
SLOT_TID_AT = 64


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
    version: int = VERSION,
) -> Path:
    """Write a ring whose threads are (tid, seq); its parts behind the slots are empty."""
    slots_at = PAGE
    size = slots_at + 6 * PART
    data = bytearray(size)
    CONSTANT.pack_into(
        data, 0, b"STALLRNG", version, THRESHOLDS_AT if version == 1 else SIZE, size,
        *(slots_at + PART * part for part in range(6)),
        slots, 512, 64, 64, 512, PAGE,
        pid, os.getuid(), start_time, namespace, created_ns, created_wall_ns,
        boot_id.encode(), comm, b"/usr/sbin/mysqld", b"0.1.0",
        start_stack, *((0, 0) if version == 1 else (len(THRESHOLDS), len(SOURCE_LOST))),
    )  # fmt: skip
    thresholds, losses = [threshold_ns] * ROOM, [*lost, *[0] * (ROOM - len(lost))]
    older = (thresholds[:13], losses[:11]) if version == 1 else ([0] * 13, [0] * 11)
    COMMANDS.pack_into(data, COMMANDS_AT, enabled, 0, *older[0])
    LIVE.pack_into(data, LIVE_AT, 2 if ended else 1, len(threads), 0, 0, 987, *older[1])
    if version != 1:
        WORDS.pack_into(data, THRESHOLDS_AT, *thresholds)
        WORDS.pack_into(data, LOST_AT, *losses)
    HEAD.pack_into(data, HEAD_AT, 17)
    for number, (tid, seq) in enumerate(threads):
        at = slots_at + number * SLOT_SIZE
        struct.pack_into("=I", data, at, seq)
        struct.pack_into("=i", data, at + SLOT_TID_AT, tid)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def of_this_process(folder: Path, *, created_ns: int = 5_000_000_000, **more: object) -> Path:
    """Make the ring that this process would have."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    path = folder / f"{os.getpid()}-{created_ns:x}{SUFFIX}"
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

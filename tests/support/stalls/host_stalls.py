# SPDX-License-Identifier: Apache-2.0
"""Stalls that the host makes: a quota of CPU, a full disk, and their fixed twins."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers import MEMORY, MariaDB, MySQL97, SqlServer
from tests.support.stalls.full_disks import (
    DATA_SIZE,
    FULL_OPTIONS,
    full_binlog,
    full_data,
    roomy_binlog,
    roomy_data,
)
from tests.support.stalls.quotas import cpu_quota, wide_quota
from tests.support.stalls.stall import Expected, NamedStall, SmallDiskStall, Stall

__all__ = ["STALLS"]

QUOTA = Expected(("cpu-quota",))
NARROW = "8 clients calculate in a control group that gives the server a tenth of a CPU"
WIDE = "no stall: 8 clients calculate in a control group with a quota of ten CPUs"

FULL = Expected(("disk-full",))
FULL_BINLOG = "8 clients commit, and the disk of the binary log is full"
ROOMY_BINLOG = "no stall: 8 clients commit, and the disk of the binary log has room"
FULL_DATA = "8 clients insert into a MyISAM table, and the disk of the data is full"
ROOMY_DATA = "no stall: 8 clients insert into a MyISAM table, and the disk of the data has room"


def _binlog_mariadb(disk: Path) -> SqlServer:
    return MariaDB(*FULL_OPTIONS, f"--log-bin={disk}/binlog", parent=MEMORY)


def _binlog_97(disk: Path) -> SqlServer:
    return MySQL97(*FULL_OPTIONS, f"--log-bin={MySQL97().inside(disk)}/binlog", parent=MEMORY)


STALLS: dict[str, NamedStall] = {
    "cpu-quota-mariadb": Stall(lambda: MariaDB(parent=MEMORY), cpu_quota, NARROW, QUOTA),
    "cpu-quota-mariadb-fixed": Stall(lambda: MariaDB(parent=MEMORY), wide_quota, WIDE),
    "cpu-quota-mysql97": Stall(lambda: MySQL97(parent=MEMORY), cpu_quota, NARROW, QUOTA),
    "cpu-quota-mysql97-fixed": Stall(lambda: MySQL97(parent=MEMORY), wide_quota, WIDE),
    "full-binlog-mariadb": SmallDiskStall(_binlog_mariadb, full_binlog, FULL_BINLOG, FULL),
    "full-binlog-mariadb-fixed": SmallDiskStall(_binlog_mariadb, roomy_binlog, ROOMY_BINLOG),
    "full-data-mariadb": SmallDiskStall(
        lambda disk: MariaDB(parent=disk), full_data, FULL_DATA, FULL, DATA_SIZE
    ),
    "full-data-mariadb-fixed": SmallDiskStall(
        lambda disk: MariaDB(parent=disk), roomy_data, ROOMY_DATA, size=DATA_SIZE
    ),
    "full-binlog-mysql97": SmallDiskStall(_binlog_97, full_binlog, FULL_BINLOG, FULL),
    "full-binlog-mysql97-fixed": SmallDiskStall(_binlog_97, roomy_binlog, ROOMY_BINLOG),
}

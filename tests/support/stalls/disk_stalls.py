# SPDX-License-Identifier: Apache-2.0
"""Stalls of disks: logs, data files and pages, and their fixed twins."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.servers import MEMORY, MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.servers.child import UNPRIVILEGED
from tests.support.stalls.commits import clean_redo_sync, commits, group_commit_delay
from tests.support.stalls.disk_load import READ, SCAN, UPDATE
from tests.support.stalls.file_extend import FILE_EXTEND_OPTIONS, file_extend, quick_extend
from tests.support.stalls.page_io import SMALL_POOL, page_reads, page_updates, quick, scans
from tests.support.stalls.purge_lag import PURGE_LAG_OPTIONS, old_snapshot, purge_lag
from tests.support.stalls.redo_sync import REDO_SYNC_OPTIONS, frozen_files, redo_sync
from tests.support.stalls.stall import DiskStall, Expected, NamedStall, Stall

__all__ = ["STALLS"]

# The redo log is not synced at a commit, so that `redo_sync` makes the wait for the binary log.
BINLOG = ("--log-bin=binlog", "--sync-binlog=1", "--server-id=1")
DIRECT = ("--innodb-flush-method=O_DIRECT",)
LARGE_POOL = ("--innodb-buffer-pool-size=256M",)
LARGE_LOG = ("--innodb-log-file-size=64M",)
LARGE_LOG_97 = ("--innodb-redo-log-capacity=128M",)
SMALL_LOG = ("--innodb-log-file-size=1M",)
SMALL_LOG_MARIADB = ("--innodb-log-file-size=4M",)
SMALL_LOG_97 = ("--innodb-redo-log-capacity=8M",)
# One thread has 256 slots for requests, and each connection wants 64 at a time.
READ_AHEAD = (
    "--innodb-read-ahead-threshold=0",
    "--innodb-read-io-threads=1",
    "--innodb-buffer-pool-size=64M",
)
WAIT_FOR_GROUP_97 = (
    "--binlog-group-commit-sync-delay=1000000",
    "--binlog-group-commit-sync-no-delay-count=1000",
)
WAIT_FOR_GROUP_MARIADB = ("--binlog-commit-wait-count=1000", "--binlog-commit-wait-usec=1000000")

QUICK_COMMITS = "no stall: 20 connections commit ten times a second, on a disk that syncs quickly"
SLOW_READS = "20 connections read rows at random places of a disk that serves 40 reads a second"
SLOW_UPDATES = "20 connections change rows on a disk that serves 40 writes a second"
NOT_ANSWER = "on a disk that does not answer"
EXTEND = f"20 connections insert into a table whose file is extended {NOT_ANSWER}"
PURGE = "changes of 20 connections are delayed because purge lags behind"
OLD_SNAPSHOT = f"{PURGE} an idle transaction"
# Who flushes pages, or moves the checkpoint, at the moment of a capture.
FLUSHERS = ("buf_flush_do_batch", "log_checkpointer")


def _slow_doublewrite(folder: Path) -> SqlServer:
    """Return a MySQL 9.7 that has only its doublewrite files in ``folder``."""
    files = folder / "doublewrite"
    files.mkdir()
    shutil.chown(files, UNPRIVILEGED, "nogroup")
    where = f"--innodb-doublewrite-dir={MySQL97().inside(files)}"
    return MySQL97(*SMALL_POOL, *LARGE_LOG_97, where, parent=MEMORY)


# The fixed twins of stalls of the redo log, whatever holds it up.
COMMITS_MARIADB = Stall(
    lambda: MariaDB(*REDO_SYNC_OPTIONS, *LARGE_LOG, parent=MEMORY), commits, QUICK_COMMITS
)
COMMITS_97 = Stall(
    lambda: MySQL97(*REDO_SYNC_OPTIONS, *LARGE_LOG_97, parent=MEMORY), commits, QUICK_COMMITS
)

STALLS: dict[str, NamedStall] = {
    # --- commits --------------------------------------------------------------------------------
    "redo-sync-fixed": Stall(
        lambda: MySQL55(*REDO_SYNC_OPTIONS, *LARGE_LOG, parent=MEMORY), commits, QUICK_COMMITS
    ),
    "redo-sync-mariadb": DiskStall(
        lambda folder: MariaDB(*REDO_SYNC_OPTIONS, parent=folder),
        clean_redo_sync,
        f"20 commits wait for the redo log {NOT_ANSWER}, in MariaDB",
        # InnoDB's functions are hidden.
        Expected(("innodb-redo-sync",), ("ha_commit_trans",)),
    ),
    "frozen-files-mariadb": DiskStall(
        lambda folder: MariaDB(*REDO_SYNC_OPTIONS, parent=folder),
        frozen_files,
        "20 commits wait until the file system of the server is thawed, in MariaDB",
        Expected(("innodb-redo-sync",), ("ha_commit_trans",)),
    ),
    "frozen-files-mariadb-fixed": COMMITS_MARIADB,
    "frozen-files-mysql97": DiskStall(
        lambda folder: MySQL97(*REDO_SYNC_OPTIONS, parent=folder),
        frozen_files,
        "20 commits wait until the file system of the server is thawed, in MySQL 9.7",
        Expected(("innodb-redo-sync",), ("log_write_up_to", "log_writer")),
    ),
    "frozen-files-mysql97-fixed": COMMITS_97,
    "redo-sync-mariadb-fixed": COMMITS_MARIADB,
    "redo-sync-mysql97": DiskStall(
        lambda folder: MySQL97(*REDO_SYNC_OPTIONS, parent=folder),
        redo_sync,
        f"20 commits wait for the redo log {NOT_ANSWER}, in MySQL 9.7",
        Expected(("innodb-redo-sync",), ("log_write_up_to",)),
    ),
    "redo-sync-mysql97-fixed": COMMITS_97,
    "binlog-sync": DiskStall(
        lambda folder: MySQL55(*BINLOG, parent=folder),
        redo_sync,
        f"20 commits wait for the binary log {NOT_ANSWER}",
        Expected(("binlog-sync",), ("MYSQL_BIN_LOG::flush_and_sync",)),
    ),
    "binlog-sync-fixed": Stall(
        lambda: MySQL55(*BINLOG, *LARGE_LOG, parent=MEMORY), commits, QUICK_COMMITS
    ),
    "binlog-sync-mariadb": DiskStall(
        lambda folder: MariaDB(*BINLOG, parent=folder),
        redo_sync,
        f"20 commits wait for the binary log {NOT_ANSWER}, in MariaDB",
        Expected(("binlog-sync",), ("MYSQL_BIN_LOG::trx_group_commit_leader",)),
    ),
    "binlog-sync-mariadb-fixed": Stall(
        lambda: MariaDB(*BINLOG, *LARGE_LOG, parent=MEMORY), commits, QUICK_COMMITS
    ),
    "binlog-sync-mysql97": DiskStall(
        lambda folder: MySQL97(*BINLOG, parent=folder),
        redo_sync,
        f"20 commits wait for the binary log {NOT_ANSWER}, in MySQL 9.7",
        Expected(("binlog-sync",), ("MYSQL_BIN_LOG::ordered_commit",)),
    ),
    "binlog-sync-mysql97-fixed": Stall(
        lambda: MySQL97(*BINLOG, *LARGE_LOG_97, parent=MEMORY), commits, QUICK_COMMITS
    ),
    "binlog-group-commit-mariadb": Stall(
        lambda: MariaDB(*BINLOG, *WAIT_FOR_GROUP_MARIADB, parent=MEMORY),
        group_commit_delay,
        "20 commits wait for a leader that is set to wait a second for more, in MariaDB",
        Expected(("binlog-group-commit",), ("MYSQL_BIN_LOG::wait_for_sufficient_commits",)),
    ),
    "binlog-group-commit-mariadb-fixed": Stall(
        lambda: MariaDB(*BINLOG, parent=MEMORY), commits, QUICK_COMMITS
    ),
    "binlog-group-commit-mysql97": Stall(
        lambda: MySQL97(*BINLOG, *WAIT_FOR_GROUP_97, parent=MEMORY),
        group_commit_delay,
        "20 commits wait for a leader that is set to wait a second for more, in MySQL 9.7",
        Expected(("binlog-group-commit",), ("MYSQL_BIN_LOG::ordered_commit",)),
    ),
    "binlog-group-commit-mysql97-fixed": Stall(
        lambda: MySQL97(*BINLOG, parent=MEMORY), commits, QUICK_COMMITS
    ),
    # --- data files -----------------------------------------------------------------------------
    "file-extend-fixed": Stall(
        lambda: MySQL55(*FILE_EXTEND_OPTIONS, *LARGE_LOG, parent=MEMORY),
        quick_extend,
        "no stall: 20 connections insert rows, with pauses, on a quick disk",
    ),
    "file-extend-mariadb": DiskStall(
        lambda folder: MariaDB(*FILE_EXTEND_OPTIONS, parent=folder),
        file_extend,
        f"{EXTEND}, in MariaDB",
        # InnoDB's functions are hidden.
        Expected(("innodb-file-extend",), ("handler::ha_write_row",)),
    ),
    "file-extend-mariadb-fixed": Stall(
        lambda: MariaDB(*FILE_EXTEND_OPTIONS, *LARGE_LOG, parent=MEMORY),
        quick_extend,
        "no stall: 20 connections insert rows, with pauses, on a quick disk, in MariaDB",
    ),
    "file-extend-mysql97": DiskStall(
        lambda folder: MySQL97(*FILE_EXTEND_OPTIONS, parent=folder),
        file_extend,
        f"{EXTEND}, in MySQL 9.7",
        Expected(("innodb-file-extend",), ("Fil_shard::space_extend",)),
    ),
    "file-extend-mysql97-fixed": Stall(
        lambda: MySQL97(*FILE_EXTEND_OPTIONS, *LARGE_LOG_97, parent=MEMORY),
        quick_extend,
        "no stall: 20 connections insert rows, with pauses, on a quick disk, in MySQL 9.7",
    ),
    # --- pages ----------------------------------------------------------------------------------
    "page-io": DiskStall(
        lambda folder: MySQL55(*SMALL_POOL, parent=folder),
        page_reads,
        SLOW_READS,
        Expected(("innodb-page-io",)),
    ),
    "page-io-fixed": Stall(
        lambda: MySQL55(*SMALL_POOL, *LARGE_POOL, parent=MEMORY),
        lambda server: quick(server, READ),
        "no stall: 20 connections read rows of a table that is in the buffer pool",
    ),
    "page-io-mariadb": DiskStall(
        lambda folder: MariaDB(*SMALL_POOL, parent=folder),
        page_reads,
        f"{SLOW_READS}, in MariaDB",
        Expected(("innodb-page-io",)),
    ),
    "page-io-mariadb-fixed": Stall(
        lambda: MariaDB(*SMALL_POOL, *LARGE_POOL, parent=MEMORY),
        lambda server: quick(server, READ),
        "no stall: 20 connections read rows of a table that is in the buffer pool, in MariaDB",
    ),
    "page-io-mysql97": DiskStall(
        lambda folder: MySQL97(*SMALL_POOL, parent=folder),
        page_reads,
        f"{SLOW_READS}, in MySQL 9.7",
        Expected(("innodb-page-io",)),
    ),
    "page-io-mysql97-fixed": Stall(
        lambda: MySQL97(*SMALL_POOL, *LARGE_POOL, parent=MEMORY),
        lambda server: quick(server, READ),
        "no stall: 20 connections read rows of a table that is in the buffer pool, in MySQL 9.7",
    ),
    "free-page": DiskStall(
        lambda folder: MySQL55(*SMALL_POOL, *LARGE_LOG, parent=folder),
        page_updates,
        f"{SLOW_UPDATES}, with a buffer pool of an eighth of the table",
        # Its pages are written through the doublewrite buffer of the same disk: the root then.
        Expected(("innodb-free-page", "innodb-doublewrite")),
    ),
    "free-page-fixed": Stall(
        lambda: MySQL55(*SMALL_POOL, *LARGE_POOL, *LARGE_LOG, parent=MEMORY),
        lambda server: quick(server, UPDATE),
        "no stall: 20 connections change rows, with a buffer pool that holds the table",
    ),
    "doublewrite-mysql97": DiskStall(
        _slow_doublewrite,
        page_updates,
        "20 connections change rows, with a small buffer pool, and the doublewrite files alone are"
        " on a disk that serves 40 writes a second, in MySQL 9.7",
        Expected(
            ("innodb-doublewrite",),
            ("Double_write::write_pages", "Double_write::sync_page_flush"),
        ),
    ),
    "doublewrite-mysql97-fixed": Stall(
        lambda: MySQL97(*SMALL_POOL, *LARGE_POOL, *LARGE_LOG_97, parent=MEMORY),
        lambda server: quick(server, UPDATE),
        "no stall: the same changes, with a buffer pool that holds the table, and quick disks",
    ),
    "sync-flush": DiskStall(
        lambda folder: MySQL55(*DIRECT, *LARGE_POOL, *SMALL_LOG, parent=folder),
        page_updates,
        f"{SLOW_UPDATES}, with a redo log of 2 MB",
        Expected(("innodb-sync-flush",)),
    ),
    "sync-flush-fixed": Stall(
        lambda: MySQL55(*DIRECT, *LARGE_POOL, *LARGE_LOG, parent=MEMORY),
        lambda server: quick(server, UPDATE),
        "no stall: 20 connections change rows, with a redo log of 128 MB and a quick disk",
    ),
    "sync-flush-mariadb": DiskStall(
        lambda folder: MariaDB(*DIRECT, *LARGE_POOL, *SMALL_LOG_MARIADB, parent=folder),
        page_updates,
        f"{SLOW_UPDATES}, with a redo log of 4 MB, in MariaDB",
        Expected(("innodb-sync-flush",)),
    ),
    "sync-flush-mariadb-fixed": Stall(
        lambda: MariaDB(*DIRECT, *LARGE_POOL, *LARGE_LOG, parent=MEMORY),
        lambda server: quick(server, UPDATE),
        "no stall: 20 connections change rows, with a larger redo log and a quick disk, in MariaDB",
    ),
    "sync-flush-mysql97-fixed": Stall(
        lambda: MySQL97(*DIRECT, *LARGE_POOL, *LARGE_LOG_97, parent=MEMORY),
        lambda server: quick(server, UPDATE),
        "no stall: 20 connections change rows, with a larger redo log and a quick disk,"
        " in MySQL 9.7",
    ),
    "sync-flush-mysql97": DiskStall(
        lambda folder: MySQL97(*DIRECT, *LARGE_POOL, *SMALL_LOG_97, parent=folder),
        page_updates,
        f"{SLOW_UPDATES}, with a redo log of 8 MB, in MySQL 9.7",
        Expected(("innodb-sync-flush",), FLUSHERS),
    ),
    "read-ahead": DiskStall(
        lambda folder: MySQL55(*SMALL_POOL, *READ_AHEAD, parent=folder),
        scans,
        "20 connections scan tables on a disk that reads 4 MB a second, and read ahead",
        Expected(("innodb-read-ahead", "innodb-page-io")),
    ),
    "read-ahead-fixed": Stall(
        lambda: MySQL55(*SMALL_POOL, *LARGE_POOL, parent=MEMORY),
        lambda server: quick(server, SCAN, 2),
        "no stall: 2 connections scan a table that is in the buffer pool",
    ),
    # --- purge ----------------------------------------------------------------------------------
    "purge-lag": Stall(
        lambda: MySQL55(*PURGE_LAG_OPTIONS, parent=MEMORY),
        purge_lag,
        PURGE,
        Expected(("innodb-purge",)),
    ),
    "purge-lag-fixed": Stall(
        lambda: MySQL55(parent=MEMORY),
        lambda server: purge_lag(server, pause=True),
        "no stall: the same changes, with pauses, and no limit of the history",
    ),
    "purge-lag-mariadb": Stall(
        lambda: MariaDB(*PURGE_LAG_OPTIONS, parent=MEMORY),
        # Purge catches up while all are delayed, and for a second nobody is: one burst in three
        # meets that.
        purge_lag,
        f"{PURGE}, in MariaDB",
        Expected(("innodb-purge",)),
    ),
    "purge-lag-mariadb-fixed": Stall(
        lambda: MariaDB(parent=MEMORY),
        lambda server: purge_lag(server, pause=True),
        "no stall: the same changes, with pauses, and no limit of the history, in MariaDB",
    ),
    "purge-lag-mysql97": Stall(
        lambda: MySQL97(*PURGE_LAG_OPTIONS, parent=MEMORY),
        old_snapshot,
        f"{OLD_SNAPSHOT}, in MySQL 9.7",
        Expected(("innodb-purge",)),
    ),
    "purge-lag-mysql97-fixed": Stall(
        lambda: MySQL97(parent=MEMORY),
        lambda server: purge_lag(server, pause=True),
        "no stall: the same changes, with pauses, and no limit of the history, in MySQL 9.7",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""The stalls that this project began with, and their fixed twins."""

from __future__ import annotations

from tests.support.servers import MariaDB, MySQL55, MySQL97
from tests.support.stalls.file_extend import FILE_EXTEND_OPTIONS, file_extend
from tests.support.stalls.index_lock import INDEX_LOCK_OPTIONS, index_lock
from tests.support.stalls.redo_sync import REDO_SYNC_OPTIONS, redo_sync
from tests.support.stalls.row_locks import deadlock_check_storm, row_lock_convoy
from tests.support.stalls.sql_layer import global_read_lock, metadata_lock_pileup
from tests.support.stalls.stall import DiskStall, Expected, NamedStall, Stall
from tests.support.stalls.table_storm import (
    TABLE_STORM_OPTIONS,
    table_open_storm,
    template_of_tables,
)

__all__ = ["STALLS"]

INDEX_LOCK_FIXED = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M")

STALLS: dict[str, NamedStall] = {
    "metadata-lock": Stall(
        MariaDB,
        metadata_lock_pileup,
        "20 SELECTs queue behind an ALTER TABLE, which waits for a transaction that sits idle",
        Expected(("metadata-lock",)),
    ),
    "metadata-lock-select": Stall(
        MariaDB,
        lambda server: metadata_lock_pileup(server, long_select=True),
        "20 SELECTs queue behind an ALTER TABLE, which waits for a SELECT that takes long;"
        " 5 more connections are idle",
        Expected(("metadata-lock",)),
    ),
    "metadata-lock-mysql97": Stall(
        # Its data cannot be elsewhere, and what an ALTER TABLE syncs may take a disk seconds.
        lambda: MySQL97("--innodb-flush-method=nosync"),
        metadata_lock_pileup,
        "20 SELECTs queue behind an ALTER TABLE, in a MySQL 9.7 with a root of its own",
        Expected(("metadata-lock",)),
    ),
    "global-read-lock": Stall(
        MariaDB,
        global_read_lock,
        "20 writers wait for FLUSH TABLES WITH READ LOCK",
        Expected(("global-read-lock",)),
    ),
    "row-lock": Stall(
        MySQL55,
        row_lock_convoy,
        "40 connections wait for a row that an idle transaction locked, in a MySQL 5.5.9",
        Expected(("innodb-row-lock",)),
    ),
    "row-lock-mariadb": Stall(
        MariaDB,
        row_lock_convoy,
        "40 connections wait for a row that an idle transaction locked, in MariaDB",
        Expected(("innodb-row-lock",)),
    ),
    "deadlock-check": Stall(
        MySQL55,
        lambda server: deadlock_check_storm(server, 190),
        "190 connections update one row; each new waiter is checked against all others",
        Expected(("innodb-deadlock-check",), ("lock_deadlock_recursive", "lock_deadlock_occurs")),
    ),
    "deadlock-check-fixed": Stall(
        MySQL55,
        lambda server: deadlock_check_storm(server, 4),
        "no stall: the same updates from a pool of 4 connections",
    ),
    "table-open-lock": Stall(
        lambda: MySQL55(*TABLE_STORM_OPTIONS, template=template_of_tables()),
        table_open_storm,
        "64 connections open 2000 tables through a table cache of 64",
        Expected(("table-open-lock",), ("open_table", "open_unireg_entry", "open_table_def")),
    ),
    "index-lock": Stall(
        lambda: MySQL55(*INDEX_LOCK_OPTIONS),
        index_lock,
        "40 connections insert rows of 7 KB into an index larger than the buffer pool",
        Expected(
            ("innodb-index-lock",), ("btr_cur_pessimistic_insert", "btr_page_split_and_insert")
        ),
    ),
    "index-lock-fixed": Stall(
        lambda: MySQL55(*INDEX_LOCK_OPTIONS, *INDEX_LOCK_FIXED),
        lambda server: index_lock(server, 4),
        "no stall: the same inserts from a pool of 4 connections, and a buffer pool of 512 MB;"
        " it writes some 30 MB a second",
    ),
    "file-extend": DiskStall(
        lambda folder: MySQL55(*FILE_EXTEND_OPTIONS, parent=folder),
        file_extend,
        "20 connections insert into a table whose file is extended on a disk that does not answer",
        Expected(("innodb-file-extend",), ("fil_extend_space_to_desired_size",)),
    ),
    "redo-sync": DiskStall(
        lambda folder: MySQL55(*REDO_SYNC_OPTIONS, parent=folder),
        redo_sync,
        "20 commits wait for the redo log on a disk that does not answer",
        Expected(("innodb-redo-sync",), ("log_write_up_to",)),
    ),
}

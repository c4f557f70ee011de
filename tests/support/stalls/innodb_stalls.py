# SPDX-License-Identifier: Apache-2.0
"""Stalls of InnoDB and of the SQL layer's locks, and fixed twins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.support.servers import MEMORY, MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.stalls.adaptive_hash import (
    ADAPTIVE_HASH_FIXED,
    ADAPTIVE_HASH_OPTIONS,
    adaptive_hash,
    reads_without_adaptive_hash,
)
from tests.support.stalls.autoinc import (
    AUTOINC_FIXED,
    AUTOINC_OPTIONS,
    autoinc_lock,
    inserts_beside_a_bulk_insert,
)
from tests.support.stalls.innodb_ddl import (
    DROP,
    DROP_OPTIONS,
    TRUNCATE,
    ddl_on_a_hung_disk,
    ddl_on_a_quick_disk,
)
from tests.support.stalls.innodb_work import (
    CONCURRENCY_OPTIONS,
    DIVE_OPTIONS,
    long_in_lists,
    long_in_lists_of_a_pool,
    reads_of_a_pool,
    short_in_lists,
    thread_concurrency,
)
from tests.support.stalls.stall import HEALTHY, DiskStall, Expected, NamedStall, Stall
from tests.support.stalls.table_locks import (
    flushes_among_short_reads,
    long_scan_of_innodb,
    myisam_table_lock,
    short_user_locks,
    table_flush,
    user_level_lock,
)
from tests.support.stalls.table_stats import (
    TABLE_STATS_FIXED,
    TABLE_STATS_OPTIONS,
    few_samples,
    table_stats,
)
from tests.support.stalls.table_storm import (
    TABLE_STORM_FIXED,
    open_table_reads,
    template_of_tables,
)
from tests.support.stalls.twins import (
    ddl_among_short_transactions,
    ddl_that_does_not_wait,
    snapshot_instead_of_read_lock,
    updates_of_one_row,
)

__all__ = ["STALLS"]

TWINS: dict[str, NamedStall] = {
    "metadata-lock-fixed": Stall(
        lambda: MariaDB(parent=MEMORY),
        ddl_among_short_transactions,
        "no stall: an ALTER TABLE about once a second, while 20 clients read in short transactions",
    ),
    "metadata-lock-select-fixed": Stall(
        lambda: MariaDB(parent=MEMORY),
        ddl_that_does_not_wait,
        "no stall: 20 clients read while a SELECT takes long; ALTER TABLE NOWAIT gives up at once",
    ),
    "metadata-lock-mysql97-fixed": Stall(
        lambda: MySQL97("--innodb-flush-method=nosync"),
        ddl_among_short_transactions,
        "no stall: as metadata-lock-fixed, in a MySQL 9.7",
    ),
    "global-read-lock-fixed": Stall(
        lambda: MariaDB(parent=MEMORY),
        snapshot_instead_of_read_lock,
        "no stall: 20 clients write while a backup reads a snapshot instead of locking",
    ),
    "row-lock-fixed": Stall(
        lambda: MySQL55(parent=MEMORY),
        updates_of_one_row,
        "no stall: 8 clients update one row, each in a transaction of its own",
    ),
    "row-lock-mariadb-fixed": Stall(
        lambda: MariaDB(parent=MEMORY),
        updates_of_one_row,
        "no stall: 8 clients update one row, each in a transaction of its own, in MariaDB",
    ),
    "table-open-lock-fixed": Stall(
        lambda: MySQL55(*TABLE_STORM_FIXED, template=template_of_tables()),
        open_table_reads,
        "no stall: 8 clients read the same 2000 tables through a cache that holds them all",
    ),
}

AUTOINC_STORY = "20 inserts wait for the AUTO-INC lock of an INSERT ... SELECT that takes hours"
AUTOINC_FIXED_STORY = (
    "no stall: 20 clients insert beside an INSERT ... SELECT, with innodb_autoinc_lock_mode=2"
)
AUTOINC = Expected(
    ("innodb-autoinc-lock",), ("select_insert::send_data", "Query_result_insert::send_data")
)

AUTOINC_STALLS: dict[str, NamedStall] = {
    "autoinc-lock": Stall(lambda: MySQL55(*AUTOINC_OPTIONS), autoinc_lock, AUTOINC_STORY, AUTOINC),
    "autoinc-lock-fixed": Stall(
        lambda: MySQL55(*AUTOINC_FIXED, parent=MEMORY),
        inserts_beside_a_bulk_insert,
        AUTOINC_FIXED_STORY,
    ),
    "autoinc-lock-mariadb": Stall(
        lambda: MariaDB(*AUTOINC_OPTIONS),
        autoinc_lock,
        f"{AUTOINC_STORY}, in MariaDB",
        AUTOINC,
    ),
    "autoinc-lock-mariadb-fixed": Stall(
        lambda: MariaDB(*AUTOINC_FIXED, parent=MEMORY),
        inserts_beside_a_bulk_insert,
        f"{AUTOINC_FIXED_STORY}, in MariaDB",
    ),
    "autoinc-lock-mysql97": Stall(
        lambda: MySQL97(*AUTOINC_OPTIONS),
        autoinc_lock,
        f"{AUTOINC_STORY}, in MySQL 9.7",
        AUTOINC,
    ),
    "autoinc-lock-mysql97-fixed": Stall(
        lambda: MySQL97(*AUTOINC_FIXED, "--innodb-flush-method=nosync"),
        inserts_beside_a_bulk_insert,
        f"{AUTOINC_FIXED_STORY}, in MySQL 9.7",
    ),
}


Servers = dict[str, Callable[[], SqlServer]]
FAST: Servers = {
    "": lambda: MySQL55(parent=MEMORY),
    "-mariadb": lambda: MariaDB(parent=MEMORY),
    "-mysql97": lambda: MySQL97("--innodb-flush-method=nosync"),
}
"""Servers by the end of the stall's name; their disk is not slow."""
MYSQL: Servers = {name: FAST[name] for name in ("", "-mysql97")}


def on_each(
    name: str,
    make: Callable[[SqlServer], AbstractContextManager[object]],
    story: str,
    expected: Expected = HEALTHY,
    servers: Servers = FAST,
) -> dict[str, NamedStall]:
    """Return the same stall on several servers."""
    stem, fixed = name.removesuffix("-fixed"), "-fixed" if name.endswith("-fixed") else ""
    return {
        f"{stem}{server}{fixed}": Stall(start, make, story, expected)
        for server, start in servers.items()
    }


CONCURRENCY = Expected(
    ("innodb-thread-concurrency",), ("rr_sequential", "do_select", "Query_expression::execute")
)

SQL_STALLS = {
    **on_each(
        "myisam-table-lock",
        myisam_table_lock,
        "an UPDATE, and 20 readers behind it, wait for a long scan of a MyISAM table",
        Expected(
            ("myisam-table-lock",), ("ha_myisam::rnd_next", "handler::ha_rnd_next", "rr_sequential")
        ),
    ),
    **on_each(
        "myisam-table-lock-fixed",
        long_scan_of_innodb,
        "no stall: 20 clients read and update the table beside a long scan; its engine is InnoDB",
    ),
    **on_each(
        "user-level-lock",
        user_level_lock,
        "20 connections wait for a GET_LOCK of an idle one",
        Expected(("user-level-lock",)),
    ),
    **on_each(
        "user-level-lock-fixed",
        short_user_locks,
        "no stall: 4 clients use the same GET_LOCK for one short statement each",
    ),
    **on_each(
        "table-flush-wait",
        table_flush,
        "FLUSH TABLES, and 20 readers, wait for a long scan that uses the old version of a table",
        Expected(("table-flush-wait",), ("JOIN::exec", "Query_expression::execute")),
        # MariaDB's FLUSH TABLES waits for no statement, that of one table for a metadata lock.
        MYSQL,
    ),
    **on_each(
        "table-flush-wait-fixed",
        flushes_among_short_reads,
        "no stall: FLUSH TABLES about once a second, while 20 clients read shortly",
        servers=MYSQL,
    ),
}

WORK_STALLS: dict[str, NamedStall] = {
    "thread-concurrency": Stall(
        lambda: MySQL55(*CONCURRENCY_OPTIONS),
        thread_concurrency,
        f"20 connections scan a table, with {' '.join(CONCURRENCY_OPTIONS)}",
        CONCURRENCY,
    ),
    "thread-concurrency-mysql97": Stall(
        lambda: MySQL97(*CONCURRENCY_OPTIONS),
        thread_concurrency,
        f"20 connections scan a table of MySQL 9.7, with {' '.join(CONCURRENCY_OPTIONS)}",
        CONCURRENCY,
    ),
    **on_each(
        "thread-concurrency-fixed",
        reads_of_a_pool,
        "no stall: 20 clients read the same table in short statements, without a limit",
        servers=MYSQL,
    ),
    **on_each(
        "range-estimate",
        long_in_lists,
        "16 connections run queries with 900 values in an IN list, each of which is looked up in"
        " eight indexes first",
        # All do the same: nobody waits for one of them.
        Expected(("innodb-range-estimate",)),
        {
            "": MySQL55,
            "-mariadb": lambda: MariaDB(*DIVE_OPTIONS),
            "-mysql97": lambda: MySQL97(*DIVE_OPTIONS),
        },
    ),
    **on_each(
        "range-estimate-fixed",
        short_in_lists,
        "no stall: 8 clients run such queries with 5 values",
        servers={"": FAST[""]},
    ),
    **on_each(
        "range-estimate-fixed",
        long_in_lists_of_a_pool,
        "no stall: 8 clients run such queries, with the default eq_range_index_dive_limit",
        servers={name: FAST[name] for name in ("-mariadb", "-mysql97")},
    ),
}

DROP_FIXED: Servers = {"": lambda: MySQL55(*DROP_OPTIONS, parent=MEMORY)}
DDL_STALLS: dict[str, NamedStall] = {
    "drop-table": DiskStall(
        lambda folder: MySQL55(*DROP_OPTIONS, parent=folder),
        lambda server, device: ddl_on_a_hung_disk(server, device, DROP),
        "20 connections open tables while a DROP TABLE removes a file of a disk that does not"
        " answer",
        Expected(("innodb-drop-table",), ("row_drop_table_for_mysql",)),
    ),
    "truncate-table": DiskStall(
        lambda folder: MySQL55(*DROP_OPTIONS, parent=folder),
        lambda server, device: ddl_on_a_hung_disk(server, device, TRUNCATE),
        "20 connections open tables while a TRUNCATE TABLE removes a file of a disk that does not"
        " answer",
        Expected(("innodb-drop-table",), ("row_truncate_table_for_mysql",)),
    ),
    **on_each(
        "drop-table-fixed",
        ddl_on_a_quick_disk,
        "no stall: 20 clients read tables beside a DROP and a TRUNCATE TABLE about once a second,"
        " on a quick disk",
        servers=DROP_FIXED,
    ),
    **on_each(
        "truncate-table-fixed",
        ddl_on_a_quick_disk,
        "no stall: the same as drop-table-fixed",
        servers=DROP_FIXED,
    ),
}

STATS_STALLS: dict[str, NamedStall] = {
    "table-stats": Stall(
        lambda: MySQL55(*TABLE_STATS_OPTIONS),
        table_stats,
        "20 connections read a table that is analyzed all the time, from all pages of its indexes",
        Expected(("innodb-table-stats",), ("dict_update_statistics",)),
    ),
    "table-stats-fixed": Stall(
        lambda: MySQL55(*TABLE_STATS_FIXED),
        few_samples,
        "no stall: 20 clients read a table that is analyzed about once a second, from 8 pages",
    ),
}

HASH_STALLS: dict[str, NamedStall] = {
    "adaptive-hash": Stall(
        lambda: MySQL55(*ADAPTIVE_HASH_OPTIONS),
        adaptive_hash,
        "20 readers queue behind an UPDATE that wants the latch of the adaptive hash index, which"
        " a SELECT keeps while it computes",
        Expected(("innodb-adaptive-hash",), ("Item_func_benchmark::val_int",)),
    ),
    "adaptive-hash-fixed": Stall(
        lambda: MySQL55(*ADAPTIVE_HASH_FIXED, parent=MEMORY),
        reads_without_adaptive_hash,
        "no stall: 20 clients read and update beside the same SELECT, without the hash index",
    ),
}

STALLS: dict[str, NamedStall] = {
    **TWINS,
    **AUTOINC_STALLS,
    **SQL_STALLS,
    **WORK_STALLS,
    **DDL_STALLS,
    **STATS_STALLS,
    **HASH_STALLS,
}

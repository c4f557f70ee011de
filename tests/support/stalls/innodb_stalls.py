# SPDX-License-Identifier: Apache-2.0
"""Stalls of InnoDB and of the SQL layer's locks, and fixed twins."""

from __future__ import annotations

from tests.support.servers import MEMORY, MariaDB, MySQL55, MySQL97
from tests.support.stalls.autoinc import (
    AUTOINC_FIXED,
    AUTOINC_OPTIONS,
    autoinc_lock,
    inserts_beside_a_bulk_insert,
)
from tests.support.stalls.stall import Expected, NamedStall, Stall
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
    "autoinc-lock": Stall(
        lambda: MySQL55(*AUTOINC_OPTIONS), autoinc_lock, AUTOINC_STORY, AUTOINC
    ),
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

STALLS: dict[str, NamedStall] = {**TWINS, **AUTOINC_STALLS}

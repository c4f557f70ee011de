# SPDX-License-Identifier: Apache-2.0
"""Real stalls in real servers.

Each is a context manager that makes the stall, waits until it is there, and undoes it.
"""

from __future__ import annotations

from tests.support.stalls.file_extend import FILE_EXTEND_OPTIONS, file_extend
from tests.support.stalls.index_lock import INDEX_LOCK_OPTIONS, index_lock
from tests.support.stalls.load import sysbench_load
from tests.support.stalls.redo_sync import (
    REDO_SYNC_OPTIONS,
    Device,
    device_missing,
    loop_device,
    make_journals,
    redo_sync,
)
from tests.support.stalls.row_locks import LONG_CHECKS, deadlock_check_storm, row_lock_convoy
from tests.support.stalls.sql_layer import global_read_lock, metadata_lock_pileup
from tests.support.stalls.table_storm import (
    TABLE_STORM_OPTIONS,
    table_open_storm,
    template_of_tables,
)

__all__ = [
    "FILE_EXTEND_OPTIONS",
    "INDEX_LOCK_OPTIONS",
    "LONG_CHECKS",
    "REDO_SYNC_OPTIONS",
    "TABLE_STORM_OPTIONS",
    "Device",
    "deadlock_check_storm",
    "device_missing",
    "file_extend",
    "global_read_lock",
    "index_lock",
    "loop_device",
    "make_journals",
    "metadata_lock_pileup",
    "redo_sync",
    "row_lock_convoy",
    "sysbench_load",
    "table_open_storm",
    "template_of_tables",
]

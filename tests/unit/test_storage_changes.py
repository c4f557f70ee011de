# SPDX-License-Identifier: Apache-2.0
"""Commits, rows and bytes between two samples of a server's counters."""

from __future__ import annotations

import pytest

from stallscope.analyzers.storagechanges import changes, is_on
from stallscope.model.storagecounters import StorageChanges, StorageCounters

INNODB: dict[str, float] = {
    "Innodb_rows_inserted": 1,
    "Innodb_rows_updated": 2,
    "Innodb_rows_deleted": 3,
}


def between(
    grown: dict[str, float], family: str = "mysql", settings: dict[str, str] | None = None
) -> StorageChanges:
    """Return the changes where each counter grew by this much from 1000."""
    first = StorageCounters(1.0, family, "1.2.3", 7, dict.fromkeys(grown, 1000.0))
    last = StorageCounters(
        11.0, family, "1.2.3", 7, {n: 1000.0 + v for n, v in grown.items()}, settings or {}
    )
    return changes(first, last)


def commits(
    grown: dict[str, float], family: str = "mysql", settings: dict[str, str] | None = None
) -> tuple[float, bool] | None:
    found = between(grown, family, settings).commits
    return None if found is None else (found.count, found.exact)


def test_commits_of_the_binary_log() -> None:
    on = {"log_bin": "ON"}
    grown = {"Binlog_cache_use": 40.0, "Com_commit": 90.0, "Com_update": 200.0}
    assert commits(grown, settings=on) == (40, True)
    assert commits(grown, settings={"log_bin": "OFF"}) == (90, False)


@pytest.mark.parametrize(
    ("family", "grown", "expected"),
    [
        ("mysql", {"Com_commit": 0, "Com_update": 50, "Com_insert": 2}, 52),
        ("mysql", {"Com_commit": 30, "Com_update": 0}, 0),
        ("mysql", {"Com_commit": 30, "Com_update": 90}, 30),
        ("mariadb", {"Com_commit": 30, "Com_update": 90, "Innodb_max_trx_id": 80}, 40),
        ("mariadb", {"Com_commit": 3, "Com_update": 9, "Innodb_max_trx_id": 80}, 12),
    ],
)
def test_commits_without_it(family: str, grown: dict[str, float], expected: float) -> None:
    assert commits(grown, family, {"log_bin": "OFF"}) == (expected, False)


def test_transactions_in_autocommit_mode_beside_explicit_ones() -> None:
    grown = {"Com_commit": 30.0, "Com_update": 90.0, "Com_rollback": 0.0}
    name = "performance_schema.transactions"
    assert commits({**grown, name: 30}) == (30, False)
    assert commits({**grown, name: 75}) == (75, False)


def test_nothing_known_is_unknown() -> None:
    found = between({})
    assert (found.commits, found.rows, found.row_bytes, found.log_bytes) == (None,) * 4
    assert between({}, "postgres").commits is None
    assert found.seconds == 10


def test_rows() -> None:
    assert between(INNODB).rows == 6
    assert between({"Innodb_rows_inserted": 1}).rows is None
    handlers: dict[str, float] = {"Handler_write": 4, "Handler_update": 5, "Handler_delete": 6}
    assert between(handlers, "mariadb").rows == 15
    assert between(handlers).rows is None


def test_bytes_of_rows() -> None:
    on = {"log_bin": "ON", "binlog_format": "ROW"}
    binlog: dict[str, float] = {"Binlog_bytes_written": 77}
    assert between(binlog, "mariadb", on).row_bytes == 77
    assert between(binlog, "mariadb", on | {"log_bin_compress": "ON"}).row_bytes is None
    assert between(binlog, "mariadb", {"log_bin": "ON"}).row_bytes is None
    block = {"block_size": "8192", "wal_compression": "off"}
    wal: dict[str, float] = {"pg_stat_wal.wal_bytes": 20_000, "pg_stat_wal.wal_fpi": 2}
    assert between(wal, "postgres", block).row_bytes == 20_000 - 2 * 8192
    assert between(wal, "postgres", block | {"wal_compression": "lz4"}).row_bytes is None


def test_a_restart_between_the_samples() -> None:
    first = StorageCounters(1.0, "mysql", "5", 7, {"Uptime": 50, "Com_commit": 5})
    for session, uptime in ((8, 60), (7, 3)):
        last = StorageCounters(2.0, "mysql", "5", session, {"Uptime": uptime, "Com_commit": 9})
        found = changes(first, last)
        assert found.restarted
        assert found.commits is None
        assert found.counters == {}


def test_a_counter_that_fell_is_unknown() -> None:
    assert between({"Innodb_data_written": -5}).counters == {}


def test_settings() -> None:
    assert [is_on(one) for one in ("ON", "1", "OFF", "0", "DETECT_ONLY", None)] == [
        True,
        True,
        False,
        False,
        True,
        None,
    ]

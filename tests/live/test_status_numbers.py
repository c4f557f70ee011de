# SPDX-License-Identifier: Apache-2.0
"""Each number of MariaDB's dashboards moves under a load that makes it move, on each version."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.threadwatch import ThreadMetrics
from stallscope.analyzers import workload
from stallscope.analyzers.workload import Row, Verdict
from stallscope.collectors import processes
from stallscope.collectors.host.hostnumbers import HostNumbers
from stallscope.collectors.processes import Selector
from stallscope.collectors.sql import credentials
from stallscope.collectors.sql import workload as source
from stallscope.collectors.sql.compression import Compression
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.optionfiles import Sources
from stallscope.collectors.sql.status import Status
from stallscope.reporters.statusmetrics import VARIABLES
from stallscope.server.status import ABSENT
from tests.live.test_status import asking
from tests.support.servers import PATIENCE, MariaDB, MariaDB114, MariaDB118, SqlServer, wait_until

VERSIONS = (
    MariaDB,
    pytest.param(MariaDB114, marks=pytest.mark.nightly),
    pytest.param(MariaDB118, marks=pytest.mark.nightly),
)
ROWS = 30_000
REBUILDS = 10
"""At most, until the log of one is seen."""


@pytest.fixture(params=VERSIONS, ids=("mariadb", "mariadb114", "mariadb118"))
def server(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[SqlServer]:
    require(request.param.name)
    with request.param("--innodb-monitor-enable=module_icp") as made:
        made.execute("CREATE DATABASE d")
        made.execute("SELECT 1", database="d")  # the sequences need one
        yield made
        assert made.query("SELECT 1")[0][0] == 1


def rows_while(server: SqlServer, work: Callable[[], None]) -> dict[str, Row]:
    with asking(server) as sample:
        first = sample()
        work()
        report = workload.report(first, sample())
    return {row.id: row for row in report.rows}


def grew(rows: dict[str, Row], *names: str) -> None:
    for name in names:
        rate = rows[name].rate
        assert rate is not None, (name, rows[name].note)
        assert rate > 0, name


def has(rows: dict[str, Row], name: str) -> float:
    value = rows[name].value
    assert value is not None, (name, rows[name].note)
    return value


def random_rows(
    server: SqlServer, table: str, options: str, rows: int = 400, parts: int = 40
) -> None:
    """Fill a table with what cannot be compressed, 64 bytes a part."""
    server.execute(
        f"CREATE TABLE d.{table} (a INT PRIMARY KEY, b LONGBLOB) {options}",
        f"INSERT INTO d.{table} SELECT seq, CAST(CONCAT("
        + ", ".join(f"UNHEX(SHA2(CONCAT(seq, '-{i}'), 512))" for i in range(parts))
        + f") AS BINARY) FROM seq_1_to_{rows}",
    )


def test_aria(server: SqlServer) -> None:
    server.execute("CREATE TABLE d.aria (a INT PRIMARY KEY, b CHAR(200)) ENGINE=Aria")
    before = rows_while(server, lambda: None)

    def work() -> None:
        server.execute(
            f"INSERT INTO d.aria SELECT seq, seq FROM seq_1_to_{ROWS}", "FLUSH TABLES d.aria"
        )
        assert server.query("SELECT COUNT(*), SUM(LENGTH(b)) FROM d.aria")[0][0] == ROWS

    after = rows_while(server, work)
    grew(after, "aria-writes", "aria-log-syncs")
    assert has(after, "aria-used") > has(before, "aria-used")
    assert has(after, "aria-unused") < has(before, "aria-unused")
    assert has(after, "aria-total") == has(after, "aria-used") + has(after, "aria-unused")
    assert 0 < has(after, "aria-use") < 1
    assert has(after, "aria-misses") >= 0
    assert has(after, "aria-write-through") > 0


def test_index_condition_pushdown(server: SqlServer) -> None:
    server.execute(
        "CREATE TABLE d.icp (a INT PRIMARY KEY, b INT, c INT, d CHAR(9), KEY k (b, c))",
        "INSERT INTO d.icp SELECT seq, seq DIV 10, seq MOD 10, 'x' FROM seq_1_to_20000",
        "ANALYZE TABLE d.icp",
    )
    found = rows_while(
        server,
        lambda: server.execute(
            "SELECT SUM(LENGTH(d)) FROM d.icp FORCE INDEX (k) WHERE b BETWEEN 100 AND 200 AND c = 3"
        ),
    )
    grew(found, "icp-attempts", "icp-no-match", "icp-out-of-range")
    # One of ten matches.
    assert has(found, "icp") == pytest.approx(0.1, abs=0.02)


def test_online_alter_under_writes(server: SqlServer) -> None:
    server.execute(
        "CREATE TABLE d.ddl (a INT PRIMARY KEY AUTO_INCREMENT, b CHAR(200)) ENGINE=InnoDB",
        "INSERT INTO d.ddl (b) SELECT seq FROM seq_1_to_200000",
    )
    done = threading.Event()
    most: dict[str, float] = {}

    def seen() -> bool:
        return all(most.get(f"ddl-{name}", 0.0) > 0 for name in ("rows", "log", "progress"))

    def alter() -> None:
        connection = server.connect()
        try:
            with connection.cursor() as cursor:
                for _ in range(REBUILDS):
                    # Of an index alone, only the share of the log is counted.
                    cursor.execute("ALTER TABLE d.ddl FORCE, ALGORITHM=INPLACE, LOCK=NONE")
                    if seen():
                        break
        finally:
            done.set()
            connection.close()

    def write() -> None:
        connection = server.connect()
        with connection.cursor() as cursor:
            # An ALTER TABLE ends only when writes leave it the time to apply its log.
            while not done.is_set() and not seen():
                cursor.execute("UPDATE d.ddl SET b = CONCAT(LEFT(b, 150), 'y') WHERE a < 100")
        connection.close()

    threads = [threading.Thread(target=work, daemon=True) for work in (alter, write)]
    for thread in threads:
        thread.start()
    with connected(server) as connection:
        while not done.is_set():
            report = workload.report(None, connection.ask(source.sample, PATIENCE))
            for row in report.rows:
                if row.id.startswith("ddl-") and row.value is not None:
                    most[row.id] = max(most.get(row.id, 0.0), row.value)
    for thread in threads:
        thread.join(PATIENCE)
    assert seen(), most
    assert most["ddl-progress"] <= 1


@contextmanager
def connected(server: SqlServer) -> Iterator[Connection]:
    """Yield a connection beside those of other clients."""
    found = processes.find_server(str(server.pid), Selector())
    connection = Connection(credentials.find(Sources(no_defaults=True), found)[0])
    try:
        yield connection
    finally:
        connection.close()


def test_page_compression_fails_on_random_data(server: SqlServer) -> None:
    def work() -> None:
        server.execute(
            "CREATE TABLE d.small (a INT PRIMARY KEY, b CHAR(250)) PAGE_COMPRESSED=1",
            "INSERT INTO d.small SELECT seq, 'x' FROM seq_1_to_20000",
        )
        # Pages of long values alone are full to their end.
        random_rows(server, "random", "PAGE_COMPRESSED=1", rows=50, parts=600)
        # Pages are compressed when they are written.
        server.execute("FLUSH TABLES d.random, d.small FOR EXPORT", "UNLOCK TABLES")

    found = rows_while(server, work)
    grew(found, "page-compression", "page-compression-errors", "page-compression-saved")


def test_compressed_tables_fail_on_random_data(server: SqlServer) -> None:
    def work() -> None:
        random_rows(server, "zip", "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=4")

    found = rows_while(server, work)
    grew(found, "zip-operations")
    assert has(found, "zip-failures") > 0.05
    assert found["zip-failures"].verdict in (Verdict.WARNING, Verdict.CRITICAL)


def test_defragmentation_is_only_where_it_is(server: SqlServer) -> None:
    found = rows_while(server, lambda: None)
    names = ("defragmentation", "defragmentation-failures", "defragmentation-compression")
    for name in names:
        if isinstance(server, MariaDB114 | MariaDB118):
            assert (found[name].verdict, found[name].note) == (Verdict.UNKNOWN, ABSENT)
        else:
            assert found[name].value == 0


def test_defragmentation(require: Callable[..., None]) -> None:
    require("mariadb")
    with MariaDB("--innodb-defragment=ON", "--innodb-defragment-frequency=1000") as server:
        server.execute(
            "CREATE DATABASE d",
            "USE d",
            "CREATE TABLE d.t (a INT PRIMARY KEY, b CHAR(200)) ENGINE=InnoDB"
            " COMMENT='MERGE_THRESHOLD=1'",
            "INSERT INTO d.t SELECT seq, 'x' FROM seq_1_to_20000",
            "DELETE FROM d.t WHERE a MOD 4 > 0",
        )
        # Purge would merge the pages itself, and frees nothing before it has run.
        wait_until(lambda: server.status("Innodb_history_list_length") == 0, "it is purged")
        found = rows_while(server, lambda: server.execute("OPTIMIZE TABLE d.t"))
        grew(found, "defragmentation")


def test_bytes_and_device(server: SqlServer) -> None:
    found = processes.find_server(str(server.pid), Selector())
    host = HostNumbers(found)
    host.begin()
    with asking(server) as sample:
        first = sample()
        server.execute(
            "CREATE TABLE d.net (a INT PRIMARY KEY, b CHAR(250)) ENGINE=InnoDB",
            f"INSERT INTO d.net SELECT seq, REPEAT('x', 250) FROM seq_1_to_{ROWS}",
        )
        assert len(server.query("SELECT * FROM d.net")) == ROWS
        Path(server.data, "sync").write_bytes(bytes(1 << 20))
        os.sync()
        report = workload.report(first, host.added(sample()))
    host.close()
    rows = {row.id: row for row in report.rows}
    sent = rows["sent"].rate
    assert sent is not None
    assert sent * report.seconds > ROWS * 250
    grew(rows, "received")
    assert rows["sent-share"].value is None
    assert "no port" in (rows["sent-share"].note or "")
    if rows["device-in-flight"].value is None:
        pytest.skip(f"the data is on no disk: {rows['device-in-flight'].note}")
    assert has(rows, "device-use") > 0
    assert has(rows, "device-queue") > 0
    assert has(rows, "device-write") > 0


def test_metrics_of_the_agent(server: SqlServer) -> None:
    """Each status variable that is a metric exists on some version, and is exported."""
    found = processes.find_server(str(server.pid), Selector())
    with connected(server) as connection:
        random_rows(server, "zip", "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=4")
        sample = Status(connection, PATIENCE, names=VARIABLES).collect()
        compression = Compression(connection, PATIENCE).collect()
    metrics = AgentMetrics({"server": found.name}, 0.0, ThreadMetrics())
    metrics.status.take(sample)
    metrics.status.take(compression)
    metrics.up["server"] = True
    exported = {family.name: family for family in metrics.families()}
    blocks = {
        one.labels["state"]: one.value
        for one in exported["stallscope_aria_pagecache_blocks"].samples
    }
    assert blocks["unused"] == server.status("Aria_pagecache_blocks_unused")
    pages = {
        one.labels["result"]: one.value
        for one in exported["stallscope_table_compression_pages"].samples
    }
    assert 0 < pages["failed"] < pages["tried"]
    lost = {name for name in VARIABLES if name not in sample.values}
    assert all(name.startswith("Innodb_defragment") for name in lost), lost
    assert ("stallscope_defragmentations" in exported) == (not lost)
    metrics.up["server"] = False
    assert "stallscope_deadlocks" not in {family.name for family in metrics.families()}

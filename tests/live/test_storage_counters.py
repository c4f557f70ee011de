# SPDX-License-Identifier: Apache-2.0
"""What servers count of known transactions: the numbers that analyzers/storagechanges.py is
built on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from stallscope.analyzers.storagechanges import changes
from stallscope.collectors import processes
from stallscope.collectors.sql import postgres_login
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.postgres_session import PostgresConnection
from stallscope.collectors.sql.storagecounters import read_counters
from stallscope.model.storagecounters import StorageChanges
from tests.support.servers import (
    MEMORY,
    PATIENCE,
    MariaDB,
    MariaDB118,
    MySQL55,
    MySQL97,
    Postgres,
    Postgres17,
    SqlServer,
    wait_until,
)

ROWS = 5
TIMES = 40
KINDS: tuple[type[SqlServer], ...] = (MySQL55, MariaDB, MySQL97)


def options(kind: type[SqlServer], binlog: bool) -> tuple[str, ...]:
    if not binlog:
        return ("--skip-log-bin",)
    rows = () if kind is MySQL97 else ("--binlog-format=ROW",)
    return ("--server-id=1", "--log-bin=binlog", *rows)


@pytest.fixture(
    params=[
        *((kind, binlog) for kind in KINDS for binlog in (True, False)),
        pytest.param((MariaDB118, True), marks=pytest.mark.nightly),
    ],
    ids=lambda one: f"{one[0].name}-{'binlog' if one[1] else 'without'}",
)
def logged(request: pytest.FixtureRequest) -> Iterator[tuple[SqlServer, bool]]:
    kind, binlog = request.param
    if reason := kind.missing():
        pytest.skip(reason)
    with kind(*options(kind, binlog)) as server:
        server.execute(
            "CREATE DATABASE t", "CREATE TABLE t.a (id INT PRIMARY KEY, b INT) ENGINE=InnoDB"
        )
        for row in range(ROWS):
            server.execute(f"INSERT INTO t.a VALUES ({row}, 0)")
        yield server, binlog


def autocommit(cursor: Any) -> None:
    for _ in range(TIMES):
        cursor.execute("UPDATE t.a SET b = b + 1 WHERE id = 0")


def transactions(cursor: Any) -> None:
    for _ in range(TIMES):
        cursor.execute("BEGIN")
        for row in range(ROWS):
            cursor.execute("UPDATE t.a SET b = b + 1 WHERE id = %s", (row,))
        cursor.execute("COMMIT")


def reading(cursor: Any) -> None:
    for _ in range(TIMES):
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM t.a")
        cursor.fetchall()
        cursor.execute("COMMIT")


def measured(server: SqlServer, work: Callable[[Any], None], logged: int) -> StorageChanges:
    """``logged``: bytes by which the position in the log moves at least; MySQL shows that late."""
    login = Login(user="root", socket=str(server.socket))
    with closing(Connection(login)) as connection, closing(server.connect()) as client:
        first = connection.ask(read_counters, PATIENCE)
        with client.cursor() as cursor:
            work(cursor)
        found = changes(first, first)

        def is_there() -> bool:
            nonlocal found
            found = changes(first, connection.ask(read_counters, PATIENCE))
            return found.log_bytes is None or found.log_bytes >= logged

        wait_until(is_there, "the position in the log moved")
        return found


def test_commits_and_rows(logged: tuple[SqlServer, bool]) -> None:
    server, binlog = logged
    # The server has transactions of its own, such as those of statistics.
    few = 0 if binlog else 3
    for work, rows in ((autocommit, TIMES), (transactions, TIMES * ROWS), (reading, 0)):
        found = measured(server, work, rows * 8)
        assert not found.restarted
        assert found.commits is not None
        expected = TIMES if rows else 0
        assert abs(found.commits.count - expected) <= few, (work.__name__, found.commits)
        assert found.commits.exact is binlog
        assert found.rows == rows, work.__name__
        assert found.settings["innodb_flush_log_at_trx_commit"] == "0"
        if rows and isinstance(server, MariaDB) and binlog:
            assert found.row_bytes_source == "binary log in row format"
            assert found.row_bytes is not None
            assert found.row_bytes > rows * 8
        if not isinstance(server, MySQL55):
            assert (found.log_bytes or 0) >= rows * 8
    assert server.answers()


@pytest.fixture(params=[Postgres, pytest.param(Postgres17, marks=pytest.mark.nightly)])
def postgres(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[Postgres]:
    require(request.param.name)
    with request.param(parent=MEMORY) as server:
        server.execute("CREATE TABLE a (id int PRIMARY KEY, b int)")
        yield server


@contextmanager
def asked(server: Postgres) -> Iterator[PostgresConnection]:
    _, (found,) = processes.resolve([str(server.pid)], processes.Selector())
    login, _ = postgres_login.find(found, environment={})
    with closing(PostgresConnection(login)) as connection:
        yield connection


@pytest.mark.needs("root")
def test_commits_and_rows_of_postgres(postgres: Postgres) -> None:
    insert = f"INSERT INTO a SELECT g, 0 FROM generate_series(1, {ROWS}) g ON CONFLICT DO NOTHING"
    writes = ";".join([f"BEGIN; {insert}; UPDATE a SET b = b + 1; COMMIT"] * TIMES)
    with asked(postgres) as connection:
        first = connection.ask(read_counters, PATIENCE)
        postgres.execute(writes)
        postgres.execute(";".join(["BEGIN; SELECT count(*) FROM a; COMMIT"] * TIMES))
        rows = ROWS + TIMES * ROWS

        def counted() -> bool:
            found = changes(first, connection.ask(read_counters, PATIENCE))
            return found.rows is not None and found.rows >= rows

        wait_until(counted, "backends have reported their rows")
        found = changes(first, connection.ask(read_counters, PATIENCE))
    assert found.commits is not None
    # The server also writes to its catalogs, in transactions of its own.
    assert abs(found.commits.count - TIMES) <= 3
    assert found.commits.exact
    assert found.rows is not None
    assert found.rows - rows <= 60
    assert (found.log_bytes or 0) >= rows * 8
    assert found.row_bytes is not None
    assert rows * 8 <= found.row_bytes <= (found.log_bytes or 0)
    assert found.settings["block_size"] == "8192"
    assert [note for note in found.notes if "checkpoint" not in note] == []
    assert postgres.answers()

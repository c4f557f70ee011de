# SPDX-License-Identifier: Apache-2.0
"""Each SQL collector on each server: it works, or says in one sentence why not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.heartbeat import Heartbeat
from stallscope.collectors.sql.innodb_status import InnodbStatus
from stallscope.collectors.sql.lock_waits import LockWaits, read_lock_waits
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.metadata_locks import MetadataLocks
from stallscope.collectors.sql.perf_threads import PerfThreads
from stallscope.collectors.sql.processlist import Processlist
from stallscope.collectors.sql.replication import Replication
from stallscope.collectors.sql.sessions import fetch
from stallscope.collectors.sql.status import Status
from tests.support.servers import PATIENCE, MariaDB, MySQL55, MySQL97, SqlServer, wait_until
from tests.support.servers.clients import (
    connection_id,
    idle_connections,
    open_transaction,
    running_statements,
)
from tests.support.stalls import metadata_lock_pileup, row_lock_convoy


@pytest.fixture
def connection(server: SqlServer) -> Iterator[Connection]:
    with closing(Connection(Login(user="root", socket=str(server.socket)))) as found:
        found.open(PATIENCE)
        yield found


def test_innodb_status(connection: Connection) -> None:
    collector = InnodbStatus(connection, PATIENCE)
    values = collector.collect().values
    assert values["innodb.log_sequence"] >= values["innodb.checkpoint"] > 0
    assert values["innodb.checkpoint_age"] >= 0
    assert values["innodb.history_list_length"] >= 0
    # A thread may just have to wait for another that has no CPU.
    wait_until(
        lambda: collector.collect().values["innodb.semaphore_waits"] == 0, "nobody waits inside"
    )


def test_lock_waits(server: SqlServer, connection: Connection) -> None:
    collector = LockWaits(connection, PATIENCE)
    # Those of another test may be on their way out.
    wait_until(lambda: collector.collect().values["lock_waits.waiting"] == 0, "nobody waits")
    known = {
        "lock_waits.waiting": 12,
        "lock_waits.blockers": 1,
        "lock_waits.largest": 12,
        "transactions.open": 13,
    }
    with row_lock_convoy(server, 12):
        # InnoDB has transactions of its own, for a moment at a time.
        wait_until(lambda: known.items() <= collector.collect().values.items(), str(known))


def test_metadata_locks(server: SqlServer, connection: Connection) -> None:
    collector = MetadataLocks(connection, PATIENCE)
    if isinstance(server, MySQL55):
        with pytest.raises(StatementError, match=r"5\.5\.9 does not report metadata locks"):
            collector.collect()
        return
    if isinstance(server, MariaDB):
        with pytest.raises(StatementError, match="INSTALL SONAME 'metadata_lock_info'"):
            collector.collect()
        return
    with metadata_lock_pileup(server, 5):
        values = collector.collect().values
    assert values["metadata_locks.pending"] == 6
    assert values["metadata_locks.pending_objects"] == 1
    assert values["metadata_locks.granted"] >= 2


def test_perf_threads(server: SqlServer, connection: Connection) -> None:
    collector = PerfThreads(connection, PATIENCE)
    if not isinstance(server, MySQL97):
        with pytest.raises(StatementError, match=r"has no performance_schema\.threads"):
            collector.collect()
        return
    server.control()

    def clients() -> tuple[float, float]:
        values = collector.collect().values
        return values["perf_threads.thread/sql/one_connection"], values["perf_threads.total"]

    # The thread of one that was closed takes a moment to leave.
    wait_until(lambda: clients()[0] == 2, "the test's two connections are there alone")
    with idle_connections(server, 5):
        seen, total = clients()
    assert seen == 7
    assert total > seen


def test_replication(server: SqlServer, connection: Connection) -> None:
    if not isinstance(server, MySQL55):
        check_replication(server, connection)
        return
    # 5.5.9 forgets no source until it is started again: others of its tests would find a replica.
    with MySQL55() as own:
        its = Connection(Login(user="root", socket=str(own.socket)))
        with closing(its):
            check_replication(own, its)


def check_replication(server: SqlServer, connection: Connection) -> None:
    collector = Replication(connection, PATIENCE)
    assert collector.collect().values == {"replication.channels": 0, "replication.stopped": 0}
    if isinstance(server, MySQL55):
        setting = "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'"
        server.execute("SET GLOBAL server_id = 7", setting)
        names, undo = ["default"], []
    elif isinstance(server, MariaDB):
        for number, name in enumerate("ab", 1):
            server.execute(
                f"CHANGE MASTER '{name}' TO MASTER_HOST='127.0.0.{number}', MASTER_USER='x'"
            )
        names = ["a", "b"]
        undo = [f"RESET SLAVE '{name}' ALL" for name in names]
    else:
        for name in ("a", "b"):
            server.execute(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=1,"
                f" SOURCE_USER='x' FOR CHANNEL '{name}'"
            )
        names = ["a", "b"]
        undo = [f"RESET REPLICA ALL FOR CHANNEL '{name}'" for name in names]
    values = collector.collect().values
    server.execute(*undo)
    assert values["replication.channels"] == values["replication.stopped"] == len(names)
    for name in names:
        assert values[f"replication.{name}.io_running"] == 0
        assert values[f"replication.{name}.sql_running"] == 0
        assert f"replication.{name}.lag_s" not in values
    assert not undo or collector.collect().values["replication.channels"] == 0


GRANTS = {
    "mariadb": ("GRANT PROCESS, SLAVE MONITOR ON *.* TO watcher@localhost",),
    "mysql55": ("GRANT PROCESS, REPLICATION CLIENT ON *.* TO watcher@localhost",),
    "mysql97": (
        "GRANT PROCESS, REPLICATION CLIENT ON *.* TO watcher@localhost",
        "GRANT SELECT ON performance_schema.* TO watcher@localhost",
    ),
}
"""What docs/sql.md asks for, word for word but for the name."""


def test_an_account_with_the_documented_rights(server: SqlServer) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/sql.md").read_text()
    server.execute("CREATE USER watcher@localhost IDENTIFIED BY 'pw'", *GRANTS[server.name])
    for grant in GRANTS[server.name]:
        assert grant.replace("watcher", "stallscope") in page
    login = Login(user="watcher", password="pw", socket=str(server.socket))
    try:
        with closing(Connection(login)) as connection:
            for kind in (Status, Heartbeat, Processlist, InnodbStatus, LockWaits, Replication):
                assert kind(connection, PATIENCE).collect().values
            if isinstance(server, MySQL97):
                assert MetadataLocks(connection, PATIENCE).collect().values
                assert PerfThreads(connection, PATIENCE).collect().values
            with row_lock_convoy(server, 5):
                found = fetch(connection, PATIENCE)
        if isinstance(server, MySQL55):
            assert found.reason is not None
            return
        assert (found.reason, found.notes) == (None, ())
        assert len(found.waits) == 5
    finally:
        server.execute("DROP USER watcher@localhost")


def test_an_account_without_rights_gets_the_missing_grants(server: SqlServer) -> None:
    server.execute("CREATE USER nobody_@localhost IDENTIFIED BY 'pw'")
    login = Login(user="nobody_", password="pw", socket=str(server.socket))
    try:
        with closing(Connection(login)) as connection:
            assert Status(connection, PATIENCE).collect().values
            for kind in (Processlist, InnodbStatus, LockWaits, Replication):
                with pytest.raises(StatementError, match=r"GRANT|denied|privilege") as refused:
                    kind(connection, PATIENCE).collect()
                assert "\n" not in str(refused.value)
            found = fetch(connection, PATIENCE)
        assert found.reason is not None
        assert found.sessions == ()
    finally:
        server.execute("DROP USER nobody_@localhost")


def test_waiters_behind_waiters(server: SqlServer, connection: Connection) -> None:
    """A waits for B, who waits for C over another row: each link is found."""
    server.execute(
        "CREATE DATABASE IF NOT EXISTS rows_",
        "CREATE TABLE rows_.chain (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
        "INSERT INTO rows_.chain VALUES (1, 0), (2, 0)",
        "SET GLOBAL innodb_lock_wait_timeout = 3600",
    )
    take = "UPDATE chain SET b = b + 1 WHERE a = {}"
    waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    with (
        open_transaction(server, "rows_", take.format(1)) as last,
        idle_connections(server, 1) as (middle,),
    ):
        middle.select_db("rows_")
        with middle.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(take.format(2))
        second = connection_id(middle)
        thread = threading.Thread(target=_update, args=(middle, take.format(1)))
        thread.start()
        try:
            with running_statements(server, "rows_", [take.format(2)]) as (first,):
                wait_until(lambda: server.query(waiting)[0][0] == 2, "both wait")
                found = connection.ask(read_lock_waits, PATIENCE)
        finally:
            server.execute(f"KILL {second}")
            thread.join()
    assert sorted((w.waiter, w.owner) for w in found) == sorted([(first, second), (second, last)])
    server.execute("DROP TABLE rows_.chain")


def _update(connection: pymysql.Connection[Any], statement: str) -> None:
    with suppress(pymysql.err.Error), connection.cursor() as cursor:
        cursor.execute(statement)

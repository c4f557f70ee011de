# SPDX-License-Identifier: Apache-2.0
"""Real stalls, captured and asked for over SQL: the verdict names the connection that blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis
from stallscope.collectors import processes, snapshot
from stallscope.collectors.sql import lock_waits, protocol
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.sessions import fetch
from stallscope.model.capture import MEMORY, Capture, LockKind
from stallscope.model.sessions import Sessions, annotate, raw_statements, redact
from stallscope.server.statements import normalize
from tests.support.servers import PATIENCE, MariaDB, MySQL55, MySQL97, SqlServer, wait_until
from tests.support.servers.clients import running_statements
from tests.support.servers.mariadb import lock_plugin_options
from tests.support.stalls import global_read_lock, metadata_lock_pileup, row_lock_convoy
from tests.support.stalls.table_locks import user_level_lock

UPDATE = "UPDATE t1 SET b = b + ? WHERE a = ?"


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("bpf")


@pytest.fixture(scope="module")
def mariadb_with_plugin(require: Callable[..., None]) -> Iterator[MariaDB]:
    require("mariadb", "mariadb-plugins")
    with MariaDB(*lock_plugin_options()) as server:
        yield server


def captured(server: SqlServer) -> tuple[Capture, Sessions]:
    """Capture, then ask, as the commands do it."""
    with closing(Connection(Login(user="root", socket=str(server.socket)))) as connection:
        connection.open(PATIENCE)
        pids, found = processes.resolve([str(server.pid)], processes.Selector())
        capture = snapshot.take(pids, found, snapshot.Options()).capture
        sessions = fetch(connection, PATIENCE)
    return annotate(capture, redact(sessions, normalize)), sessions


def analysis_of(capture: Capture) -> Analysis:
    return engine.analyze(capture, catalog.load([]))


def check_blocker(analysis: Analysis, signature: str, holder: int, waiters: int) -> None:
    """The first finding names exactly the connection that holds, known from the server: by SQL, or
    by its memory where that is enough."""
    first = analysis.findings[0]
    assert first.signature == signature
    assert first.threads >= waiters
    assert first.blocker is not None
    assert first.blocker.source in ("server", MEMORY)
    assert first.blocker.certain
    blocking = [t for t in analysis.capture.threads if t.tid == first.blocker.tid]
    assert [t.connection for t in blocking] == [holder]
    assert [t.command for t in blocking] == ["Sleep"]


def test_metadata_lock_of_an_idle_connection(mysql97: MySQL97) -> None:
    with metadata_lock_pileup(mysql97) as holder:
        capture, sessions = captured(mysql97)
    assert sessions.reason is None
    analysis = analysis_of(capture)
    check_blocker(analysis, "metadata-lock", holder, 20)
    assert analysis.findings[0].blocker is not None
    assert analysis.findings[0].blocker.sql == "SELECT SUM(total) FROM orders"
    metadata = [
        lock for lock in capture.locks if lock.kind is LockKind.METADATA and lock.source != MEMORY
    ]
    assert sorted((lock.symbol, lock.waiters) for lock in metadata) == [
        ("shop.orders", 1),
        ("shop.orders", 20),
    ]
    altering = [t for t in capture.threads if (t.query or "").startswith("ALTER TABLE orders ADD")]
    assert len(altering) == 1
    assert {t.user for t in capture.threads if t.connection and t.user} >= {"root"}
    assert sum(t.query == "SELECT SUM(total) FROM orders" for t in capture.threads) == 21
    assert raw_statements(sessions)[holder] == "SELECT SUM(total) FROM orders"


def test_metadata_lock_on_mariadb(mariadb_with_plugin: MariaDB) -> None:
    with metadata_lock_pileup(mariadb_with_plugin) as holder:
        capture, sessions = captured(mariadb_with_plugin)
    assert sessions.notes == ()
    check_blocker(analysis_of(capture), "metadata-lock", holder, 20)


def test_metadata_lock_on_mariadb_without_its_plugin(mariadb: MariaDB) -> None:
    with metadata_lock_pileup(mariadb) as holder:
        capture, sessions = captured(mariadb)
    assert sessions.reason is None
    assert ["metadata_lock_info" in note for note in sessions.notes] == [True]
    assert not capture.partial
    assert sum(t.query == "SELECT SUM(total) FROM orders" for t in capture.threads) == 20
    first = analysis_of(capture).findings[0]
    assert first.signature == "metadata-lock"
    assert first.blocker is not None
    assert not first.blocker.certain
    blocking = next(t for t in capture.threads if t.tid == first.blocker.tid)
    assert (blocking.connection, blocking.transaction) == (holder, True)


@pytest.mark.parametrize("name", ["mysql97", "mariadb"])
def test_user_level_lock(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    with user_level_lock(server) as holder:
        capture, _ = captured(server)
    check_blocker(analysis_of(capture), "user-level-lock", holder, 20)
    (symbol,) = [lock.symbol for lock in capture.locks if lock.kind is LockKind.METADATA]
    assert symbol in ("GET_LOCK(?)", "?"), "it is a literal of a statement"


@pytest.mark.parametrize("name", ["mysql97", "mariadb"])
def test_row_locks(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    with row_lock_convoy(server) as holder:
        capture, sessions = captured(server)
    assert sessions.notes == ()
    check_blocker(analysis_of(capture), "innodb-row-lock", holder, 40)
    rows = [lock for lock in capture.locks if lock.kind is LockKind.ROW]
    assert [(lock.symbol, lock.waiters) for lock in rows] == [("index PRIMARY of rows_.t1", 40)]
    assert sum(t.query == UPDATE for t in capture.threads) == 40 + isinstance(server, MySQL97)
    assert all(t.digest for t in capture.threads if t.query)


def test_global_read_lock(mysql97: MySQL97) -> None:
    with global_read_lock(mysql97) as holder:
        capture, _ = captured(mysql97)
    analysis = analysis_of(capture)
    check_blocker(analysis, "global-read-lock", holder, 20)
    assert analysis.findings[0].blocker is not None
    assert analysis.findings[0].blocker.sql == "FLUSH TABLES WITH READ LOCK"


def test_a_server_that_does_not_report(mysql55: MySQL55) -> None:
    with row_lock_convoy(mysql55):
        capture, sessions = captured(mysql55)
    assert sessions.reason is not None
    assert "does not report the OS thread" in sessions.reason
    assert not capture.partial
    assert [note.code for note in capture.notes] == ["sessions"]
    assert analysis_of(capture).findings[0].signature == "innodb-row-lock"


def test_another_server_is_noticed(mysql97: MySQL97, mariadb: MariaDB) -> None:
    """Sessions of one server never describe the threads of another."""
    pids, found = processes.resolve([str(mysql97.pid)], processes.Selector())
    capture = snapshot.take(pids, found, snapshot.Options()).capture
    with closing(Connection(Login(user="root", socket=str(mariadb.socket)))) as connection:
        sessions = fetch(connection, PATIENCE)
    annotated = annotate(capture, redact(sessions, normalize))
    assert all(thread.connection is None for thread in annotated.threads)
    assert f"process {mariadb.pid}, which was not captured" in annotated.notes[-1].message


def test_late_lock_waits_leave_the_connections(
    mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement for lock waits is made a slow one: what came before it is kept."""
    slow = "SELECT SLEEP(3600), NULL, NULL FROM DUAL WHERE 'x' IN ({1}) OR '{0}' <> ''"
    # What the server itself would end sooner.
    monkeypatch.setattr(
        protocol, "SESSION", [s for s in protocol.SESSION if "statement_time" not in s]
    )
    monkeypatch.setattr(lock_waits, "INNODB_LOCK_WAITS", slow)
    login = Login(user="root", socket=str(mariadb.socket))
    with row_lock_convoy(mariadb, 5), closing(Connection(login)) as connection:
        connection.open(PATIENCE)
        found = fetch(connection, 6.0)
    assert found.reason is None
    assert found.waits == ()
    assert sum((s.statement or "").startswith("UPDATE t1") for s in found.sessions) == 5
    assert "some lock waits are unknown" in found.notes[-1]


def test_mariadb_with_performance_schema(require: Callable[..., None]) -> None:
    """There the last statement of the idle holder is known, and it is that one's own."""
    require("mariadb")
    consumer = "--performance-schema-consumer-events-statements-current=ON"
    words = ("--performance-schema=ON", consumer)
    with MariaDB(*words) as server, row_lock_convoy(server, 5) as holder:
        capture, sessions = captured(server)
    assert sessions.notes == ()
    assert raw_statements(sessions)[holder] == "UPDATE t1 SET b = b + 1 WHERE a = 1"
    check_blocker(analysis_of(capture), "innodb-row-lock", holder, 5)


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("ANSI_QUOTES", "SELECT `SLEEP` (?) AS `?`, `?` FROM ( SELECT ? AS `?` ) `t`"),
        ("", "SELECT `SLEEP` (?) AS ?, ... FROM ( SELECT ? AS ? ) `t`"),
    ],
)
def test_a_statement_in_a_mode_of_its_session(mysql97: MySQL97, mode: str, text: str) -> None:
    """The server's own text is taken where its global mode does not say what is data."""
    sql = """SELECT SLEEP(3600) AS "it's", "a'b" FROM (SELECT 1 AS "a'b") t"""
    before = mysql97.query("SELECT @@global.sql_mode")[0][0]

    def restore() -> None:
        mysql97.execute(f"SET GLOBAL sql_mode = '{before}'")

    mysql97.execute(f"SET GLOBAL sql_mode = '{mode}'")  # for sessions that begin now
    with (
        running_statements(mysql97, "information_schema", [sql], restore),
        closing(Connection(Login(user="root", socket=str(mysql97.socket)))) as connection,
    ):
        wait_until(lambda: mysql97.in_state("User sleep") == 1, "it runs")
        sessions = redact(fetch(connection, PATIENCE), normalize)
    (found,) = [s.statement for s in sessions.sessions if s.state == "User sleep"]
    assert found is not None
    assert found.replace(" ", "") == text.replace(" ", "")

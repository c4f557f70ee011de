# SPDX-License-Identifier: Apache-2.0
"""From the rows of a PostgreSQL to sessions and lock waits; from the environment to a login."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.analyzers import endings
from stallscope.base.errors import UsageError
from stallscope.collectors import processes, rootpath
from stallscope.collectors.processes import ProcessInfo, Server
from stallscope.collectors.sql import postgres_locks, postgres_login, postgres_sessions
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.postgres_backends import read_backends
from stallscope.collectors.sql.postgres_locks import Waiter, waits_of
from stallscope.collectors.sql.postgres_session import PostgresSession, _version
from stallscope.collectors.sql.versions import ServerFacts
from stallscope.model.capture import LockKind, Thread
from stallscope.model.sessions import LockWait, redact
from stallscope.server.statements import normalize

__all__: list[str] = []

Row = Sequence[str | None]


def row(pid: int, **changes: str | None) -> list[str | None]:
    """Return a row of ACTIVITY: an application that is idle in its transaction."""
    values: dict[str, str | None] = {
        "pid": str(pid),
        "user": "app",
        "database": "shop",
        "host": "10.0.0.7",
        "program": "web",
        "kind": "client backend",
        "state": "idle in transaction",
        "wait": "Client",
        "event": "ClientRead",
        "transaction": "246.5",
        "seconds": "200.25",
        "query": "UPDATE \"T\" SET a = 'secret' WHERE id = 7",
    }
    return list({**values, **changes}.values())


WAITS = {"state": "active", "wait": "Lock", "event": "relation", "query": "SELECT 1"}


class Session:
    """Answers from a list, by the beginning of the statement."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.facts = ServerFacts(_version(150018), 99, listener_pid=1)
        self.role = "plain"
        self.database = "postgres"
        self.asked: list[str] = []

    def select(self, sql: str, *, max_rows: int = 0, database: str | None = None) -> list[Row]:
        self.asked.append(sql)
        if "current_setting" in sql:
            return [["100", "3", "0", "off", "f"]]
        tables = ("pg_blocking_pids", "pg_locks", "pg_class", "pg_stat_activity")
        name = next(name for name in tables if name in sql)
        found = self._answers[name]
        if isinstance(found, Exception):
            raise found
        return cast(list[Row], found(database) if callable(found) else found)


def fetched(**answers: Any) -> Any:
    session = cast(PostgresSession, Session(**answers))
    return postgres_sessions._fetch(session, [])


def lock(pid: int, kind: str, *, granted: bool = False, **changes: str | None) -> Row:
    values: dict[str, str | None] = {
        "pid": str(pid),
        "granted": "t" if granted else "f",
        "kind": kind,
        "mode": "ExclusiveLock",
        "database": "5",
        "relation": "16384",
        "page": "0",
        "tuple": "3",
        "xid": None,
        "virtual": None,
        "class": None,
        "object": None,
        "sub": None,
        "datname": "shop",
    }
    return list({**values, **changes}.values())


def test_an_idle_transaction() -> None:
    found = postgres_sessions.session_of(row(7))
    assert (found.connection, found.os_tid, found.user, found.host) == (7, 7, "app", "10.0.0.7")
    assert (found.command, found.state) == ("client backend", "idle in transaction")
    assert (found.seconds, found.transaction_seconds) == (200.25, 246.5)
    assert found.last
    assert found.transaction
    assert not found.own


@pytest.mark.parametrize(
    ("changes", "state", "last"),
    [
        ({"state": "active", "wait": None, "event": None}, "active", False),
        (WAITS, "active, waits for Lock relation", False),
        ({"state": "active", "wait": "Client", "event": "ClientRead"}, "active", False),
        (
            {"state": "active", "wait": "Client", "event": "ClientWrite"},
            "active, waits for Client ClientWrite",
            False,
        ),
        ({"state": "idle", "transaction": None}, "idle", True),
        ({"state": "idle in transaction (aborted)"}, "idle in transaction (aborted)", True),
        ({"state": None, "transaction": None, "query": ""}, None, False),
    ],
)
def test_states(changes: dict[str, str | None], state: str | None, last: bool) -> None:
    found = postgres_sessions.session_of(row(7, **changes))
    assert found.state == state
    assert found.last is last


def test_literals_are_gone_and_names_stay() -> None:
    found = redact(fetched(pg_stat_activity=[row(7)]), normalize)
    assert found.sessions[0].statement == 'UPDATE "T" SET a = ? WHERE id = ?'


def test_our_own_backend_is_marked() -> None:
    found = postgres_sessions.session_of(row(7, program="stallscope"))
    assert found.own


def test_hidden_sessions_are_a_reason_and_no_calm() -> None:
    mine = row(9, program="stallscope")
    hidden = row(7, state=None, query="<insufficient privilege>")
    found = fetched(pg_stat_activity=[mine, hidden])
    assert found.sessions == ()
    assert "GRANT pg_monitor TO plain" in (found.reason or "")
    found = fetched(pg_stat_activity=[mine, row(8), hidden])
    assert {session.connection for session in found.sessions} == {8, 9}
    assert found.reason is None
    assert found.notes == ("1 of 3 sessions are hidden from role plain: GRANT pg_monitor TO plain",)


def test_waits_have_their_blockers_and_the_names_of_tables() -> None:
    found = fetched(
        pg_stat_activity=[row(7), row(8, **WAITS), row(9, **WAITS, seconds="1")],
        pg_blocking_pids=[["8", "7"], ["9", "8,7"]],
        pg_locks=[
            lock(8, "transactionid", database=None, relation=None, xid="745", datname=None),
            lock(8, "tuple", granted=True),
            lock(9, "tuple"),
        ],
        pg_class=lambda database: [["16384", "public", "orders"]] if database == "shop" else [],
    )
    name = "row (0,3) of public.orders"
    assert found.waits == (
        LockWait(LockKind.ROW, 8, 7, name, "ExclusiveLock"),
        LockWait(LockKind.ROW, 9, 7, name, "ExclusiveLock"),
    )
    assert found.objects == {
        "transaction 745": name,
        "tuple (0,3) of relation 16384 of database 5": name,
    }
    assert found.notes == ()


def test_without_names_there_are_numbers() -> None:
    found = fetched(
        pg_stat_activity=[row(7), row(8, **WAITS)],
        pg_blocking_pids=[["8", "7"]],
        pg_locks=[lock(8, "relation")],
        pg_class=StatementError("the server refused: no CONNECT", 0),
    )
    assert [wait.name for wait in found.waits] == ["relation 16384 of database 5"]
    assert "names of locked tables are not known" in found.notes[0]


def test_who_waits_longest_is_asked_about() -> None:
    session = Session(pg_blocking_pids=[], pg_locks=[])
    many = [Waiter(pid, float(pid)) for pid in range(1, 500)]
    found = waits_of(cast(PostgresSession, session), many)
    assert "(499)" in session.asked[0]
    assert "(299)" not in session.asked[0]
    assert "499 sessions wait for locks: the blockers of 200" in found.notes[0]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("relation", "relation 16384 of database 5", LockKind.TABLE),
        ("extend", "extension of relation 16384 of database 5", LockKind.TABLE),
        ("page", "page 0 of relation 16384 of database 5", LockKind.TABLE),
        ("tuple", "tuple (0,3) of relation 16384 of database 5", LockKind.ROW),
        ("transactionid", "transaction 9", LockKind.ROW),
        ("virtualxid", "virtual transaction 3/4", LockKind.METADATA),
        ("advisory", "advisory lock [5,1,2,1]", LockKind.METADATA),
        ("object", "object 2 of class 1 of database 5", LockKind.METADATA),
        ("of a later version", "of a later version", LockKind.METADATA),
    ],
)
def test_locks_have_the_names_that_memory_gives_them(
    kind: str, text: str, expected: LockKind
) -> None:
    numbers: dict[str, Any] = {
        "xid": "9",
        "virtual": "3/4",
        "class": "1",
        "object": "2",
        "sub": "1",
    }
    found = postgres_locks._lock(lock(1, kind, **numbers))
    assert (found.text, found.kind) == (text, expected)


_VALUE = st.none() | st.text(max_size=12) | st.sampled_from(["1", "-1", "nan", "1e999", "9" * 30])


@given(st.lists(st.lists(_VALUE, min_size=12, max_size=12), max_size=4), st.integers(0, 3))
def test_no_row_breaks_it(rows: list[Row], shorter: int) -> None:
    """A hostile server gives what it likes: an error is one of those that fetch() takes."""
    given = [one[: len(one) - shorter] for one in rows]
    try:
        found = fetched(
            pg_stat_activity=given, pg_blocking_pids=given, pg_locks=given, pg_class=given
        )
    except (ValueError, TypeError, IndexError, OverflowError):
        return
    for session in redact(found, normalize).sessions:
        assert session.seconds is None or 0 <= session.seconds < 1e11
        assert session.user is None or session.user.isprintable()


def test_backends() -> None:
    session = Session(
        pg_stat_activity=[
            ["1", "active", "Lock"],
            ["2", "active", "IO"],
            ["3", "idle in transaction (aborted)", "Client"],
            ["4", "idle", "Client"],
            ["5", "fastpath function call", None],
            ["6", "disabled", None],
        ]
    )
    assert read_backends(cast(PostgresSession, session)) == {
        1: "waiting",
        2: "active",
        3: "idle_in_transaction",
        4: "idle",
        5: "active",
    }
    session = Session(pg_stat_activity=[["1", None, None]])
    with pytest.raises(StatementError, match="pg_monitor"):
        read_backends(cast(PostgresSession, session))


@pytest.mark.parametrize(
    ("number", "text"), [(180002, "18.2"), (170010, "17.10"), (100000, "10.0"), (90624, "9.6.24")]
)
def test_versions(number: int, text: str) -> None:
    assert _version(number).text == text
    assert _version(number).family == "postgres"


def process(**changes: Any) -> ProcessInfo:
    info = processes.read(os.getpid())
    assert info is not None
    return msgspec.structs.replace(info, ppid=1, **changes)


def login(
    *, sockets: tuple[str, ...] = (), ports: tuple[int, ...] = (), **environment: str
) -> postgres_login.PostgresLogin:
    server = Server(main=process(), pids=(), sockets=sockets, ports=ports)
    return postgres_login.find(server, environment=environment)[0]


def test_the_socket_of_the_process_comes_first() -> None:
    found = login(sockets=("/tmp/.s.PGSQL.5433",), ports=(5433,), PGHOST="/other", PGPORT="1")
    assert found.folder == f"/proc/{os.getpid()}/root/tmp"
    assert (found.where, found.port) == ("/tmp/.s.PGSQL.5433", 5433)
    assert found.uses_passfile
    assert found.becomes == (os.geteuid(), os.getegid())
    assert found.database == "postgres"


def test_a_host_of_the_environment_is_taken() -> None:
    found = login(
        sockets=("/tmp/x/.s.PGSQL.5433",), PGHOST="db", PGPORT="6000", PGUSER="m", PGPASSWORD="s3"
    )
    assert (found.where, found.user, found.password) == ("db:6000", "m", "s3")
    assert found.becomes is None
    assert "s3" not in repr(found) + str(found)


def test_a_named_role_is_no_user_to_become() -> None:
    found = login(sockets=("/tmp/.s.PGSQL.5433",), PGUSER="monitor", PGDATABASE="shop")
    assert (found.user, found.database) == ("monitor", "shop")
    assert found.becomes is None
    assert found.instead is None


def test_a_server_with_a_root_of_its_own_gets_no_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rootpath, "inside", lambda pid, path: f"/proc/self/root{tmp_path}")
    server = Server(main=process(), pids=(), sockets=("/run/.s.PGSQL.5433",))
    environment = {"PGUSER": "monitor", "PGPASSWORD": "s3"}
    found, notes = postgres_login.find(server, environment=environment)
    assert found.password is None
    assert not found.uses_passfile
    assert "its own root" in notes[0]


def test_who_cannot_become_the_servers_user_takes_its_own_role(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(postgres_login, "default_user", lambda: "stallscope")
    monkeypatch.setattr(postgres_login, "FOLDERS", (str(tmp_path),))
    found = login()
    assert (found.user, found.where, found.becomes) == ("stallscope", "127.0.0.1:5432", None)
    (tmp_path / ".s.PGSQL.5432").touch()
    found = login()
    assert found.folder == str(tmp_path)
    assert found.uses_passfile


def test_a_service_says_the_rest() -> None:
    found = login(sockets=("/tmp/x/.s.PGSQL.5433",), PGSERVICE="mine")
    assert (found.folder, found.where, found.becomes) == (None, "service mine", None)


def test_a_server_without_a_socket() -> None:
    assert login(ports=(5434,)).where == "127.0.0.1:5434"


def test_a_wrong_port() -> None:
    with pytest.raises(UsageError, match="PGPORT=x"):
        login(PGHOST="db", PGPORT="x")


@pytest.mark.parametrize(
    ("activity", "statement"),
    [
        ("idle in transaction", "SELECT pg_terminate_backend(7);"),
        ("active", "SELECT pg_cancel_backend(7);"),
        ("active, waits for Lock relation", "SELECT pg_cancel_backend(7);"),
        ("active, waits for Client ClientWrite", "SELECT pg_terminate_backend(7);"),
    ],
)
def test_what_ends_a_holder(activity: str, statement: str) -> None:
    thread = Thread(
        7, (), command="client backend", activity=activity, transaction=True, connection=7
    )
    (found,) = endings._kill(thread, "transaction", "postgres", certain=True)
    assert found.statement == statement
    assert "its transaction is rolled back" in found.effect

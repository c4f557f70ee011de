# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL over SQL: who holds what, the statement that ends it, and what happens where the
server does not answer, or refuses."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from stallscope.collectors import processes
from stallscope.collectors.host.backends import Backends
from stallscope.collectors.sql import postgres_login, postgres_sessions
from stallscope.collectors.sql.failures import ConnectError, LateError, RefusedError, StatementError
from stallscope.collectors.sql.postgres_session import PostgresConnection
from stallscope.model.capture import Capture, Process, Thread
from stallscope.model.sessions import Session
from stallscope.screens.events import SourceState
from stallscope.screens.sessions import Asking
from tests.live.shots import LONGEST_SQL, run, take
from tests.support.servers import MEMORY, PATIENCE, Child, Postgres, Postgres17, wait_until
from tests.support.servers.pgclients import HOLD, idle_transactions, lock_waits, sessions_in
from tests.support.stalls.postgres_locks import relation_lock, row_lock
from tests.support.targets import trouble

pytestmark = pytest.mark.needs("root", "bpf")

PATIENT = ("--sql-deadline", LONGEST_SQL)
STALLS = {"row": row_lock, "relation": relation_lock}


@pytest.fixture(
    scope="module", params=[Postgres, pytest.param(Postgres17, marks=pytest.mark.nightly)]
)
def server(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[Postgres]:
    require(request.param.name)
    with request.param(parent=MEMORY) as started:
        yield started


@pytest.fixture
def own(require: Callable[..., None]) -> Callable[..., Postgres]:
    """Return how to start a server that the test may stop, fill or close."""
    require("postgres")
    return lambda *options: Postgres(*options, parent=MEMORY)


@contextmanager
def connected(server: Postgres, **environment: str) -> Iterator[PostgresConnection]:
    _, (found,) = processes.resolve([str(server.pid)], processes.Selector())
    login, notes = postgres_login.find(found, environment=environment)
    assert notes == ()
    with closing(PostgresConnection(login)) as connection:
        yield connection


@contextmanager
def unharmed(server: Postgres) -> Iterator[None]:
    """The same backends serve the same connections at the end, and the server runs."""
    before = set(server.backends())
    yield
    assert trouble(server.pid) == []
    wait_until(lambda: set(server.backends()) == before, "no connection was lost, none stayed")


def words(text: str) -> str:
    return " ".join(text.split())


def first_lines(server: Postgres, *options: object) -> str:
    done = run("snap", "-p", server.pid, *(options or PATIENT))
    assert done.returncode == 0, done.stderr
    return words(done.stdout)


@pytest.mark.parametrize("stall", STALLS)
def test_the_first_lines_have_who_and_what_ends_it(server: Postgres, stall: str) -> None:
    with STALLS[stall](server) as holder:
        waiting = lock_waits(server)
        with unharmed(server):
            said = first_lines(server)
        assert f"Who: connection {holder}, postgres@[local], postgres, idle in transaction" in said
        last = {
            "row": "last: UPDATE account SET balance = balance + ? WHERE id = ?;",
            "relation": "last: SELECT count(*) FROM account WHERE id < ?;",
        }
        assert last[stall] in said
        assert "public.account" in said
        assert "[postgres-heavyweight-lock]" in said
        assert "Not known" not in said
        assert lock_waits(server) == waiting
        ending = re.search(r"SELECT pg_terminate_backend\(\d+\);", said)
        assert ending is not None, said
        assert ending[0] == f"SELECT pg_terminate_backend({holder});"
        server.query(ending[0])
        wait_until(lambda: holder not in server.backends(), "the holder is gone")
        wait_until(lambda: lock_waits(server) < waiting, "the others go on")


def test_a_holder_that_runs_a_statement_is_canceled(server: Postgres) -> None:
    with relation_lock(server, 5, long_select=True) as holder:
        with unharmed(server):
            said = first_lines(server)
        assert f"Who: connection {holder}" in said
        assert f"SELECT pg_cancel_backend({holder});" in said
        assert "pg_terminate_backend" not in said
        server.query(f"SELECT pg_cancel_backend({holder});")
        wait_until(lambda: lock_waits(server) == 0, "nobody waits any more")


def test_names_are_those_of_another_database(server: Postgres, tmp_path: Path) -> None:
    server.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    in_shop = ["-d", "shop"]
    lock_it = 'LOCK s."Orders"'
    with ExitStack() as stack:

        def start(*statements: str) -> None:
            command = [*server.psql(statements[0]), *in_shop]
            for statement in statements[1:]:
                command += ["-c", statement]
            stack.callback(Child(command, server.folder / "clients.log").end)

        start("CREATE SCHEMA s", 'CREATE TABLE s."Orders" (id int)', "BEGIN", lock_it, HOLD)
        wait_until(lambda: sessions_in(server, f"query = '{lock_it}'") == 1, "it is locked")
        start('SELECT * FROM s."Orders"')
        wait_until(lambda: lock_waits(server) == 1, "it waits")
        shot = take(tmp_path, "-p", server.pid)
        (lock,) = [lock for lock in shot.capture.locks if lock.owner_tid]
        assert lock.symbol == "s.Orders"
        blocker = shot.analysis["findings"][0]["blocker"]
        assert blocker["database"] == "shop"
        server.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop'"
        )


def test_sessions_are_those_of_the_server(server: Postgres) -> None:
    update = "UPDATE account SET balance = 7 WHERE id = 1;"
    with row_lock(server, 3) as holder, connected(server) as connection:
        found = postgres_sessions.fetch(connection, PATIENCE)
        assert found.reason is None
        assert found.notes == ()
        assert found.pid == server.pid
        by_pid = {session.connection: session for session in found.sessions}
        assert set(server.backends()) <= set(by_pid)
        assert by_pid[found.own or 0].own
        session = by_pid[holder]
        assert isinstance(session, Session)
        assert (session.user, session.database, session.host) == ("postgres", "postgres", "[local]")
        assert (session.command, session.state) == ("client backend", "idle in transaction")
        assert session.last
        assert session.transaction
        assert (session.transaction_seconds or 0) >= (session.seconds or 0) > 0
        assert len(found.waits) == 3
        assert {wait.name for wait in found.waits} == {"row (0,1) of public.account"}
        assert {wait.owner for wait in found.waits} >= {holder}
        assert update not in str(found)


def test_one_backend_alone_is_asked_about_through_its_parent(
    server: Postgres, tmp_path: Path
) -> None:
    with row_lock(server, 2) as holder, unharmed(server):
        shot = take(tmp_path, "-p", holder)
    (thread,) = shot.capture.threads
    assert (thread.tid, thread.connection, thread.source) == (holder, holder, None)
    assert thread.query == "UPDATE account SET balance = balance + ? WHERE id = ?;"
    assert not [note for note in shot.capture.notes if note.code == "sessions"]


def test_top_asks_and_kills(server: Postgres) -> None:
    said: list[object] = []
    with row_lock(server, 3) as holder, connected(server) as connection:
        asking = Asking(connection.login, PATIENCE)
        asking.start(said.append)
        try:
            asking.ask()
            wait_until(lambda: SourceState("sql", None) in said, "the server answered")
            capture = Capture(
                backend="test",
                threads=tuple(Thread(tid, ()) for tid in server.backends()),
                processes=(Process(server.pid),),
            )
            threads = {thread.tid: thread for thread in asking.into(capture, ()).threads}
            assert threads[holder].activity == "idle in transaction"
            assert threads[holder].rests
            (own,) = [thread for thread in threads.values() if thread.own]
            assert own.tid not in (holder, None)
            asking.kill(f"SELECT pg_terminate_backend({holder});")
            wait_until(lambda: holder not in server.backends(), "the holder is gone")
        finally:
            asking.close()


def test_peer_is_the_user_that_the_server_runs_as(own: Callable[..., Postgres]) -> None:
    with own() as server:
        server.execute("CREATE ROLE nobody SUPERUSER LOGIN")
        admit(server, "local all nobody peer", "local all postgres trust", "local all all reject")
        with connected(server) as connection:
            rows = connection.ask(lambda s: s.select("SELECT current_user, pg_backend_pid()"), 60)
            ((user, backend),) = rows
            assert user == "nobody"
            login = connection.login
            assert login.becomes == (login.uid, login.gid)
            assert login.uid not in (None, 0)
            owners = {processes.owner(child) for child in children()}
            assert owners == {login.becomes}
            assert int(backend or 0) in server.backends()
        wait_until(lambda: server.backends() == (), "its connection is gone")
        assert children() == []


def test_passwords_are_those_of_libpq(
    own: Callable[..., Postgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pgpass"
    file.write_text("*:*:*:plain:of-file\n")
    file.chmod(0o600)
    service = tmp_path / "services"
    with own() as server:
        server.execute("CREATE ROLE plain LOGIN PASSWORD 'of-file'")
        admit(server, "local all plain scram-sha-256", "local all all trust")

        def role(**environment: str) -> str | None:
            with connected(server, **environment) as connection:
                return connection.open(PATIENCE).role

        monkeypatch.setenv("PGPASSFILE", os.devnull)
        with pytest.raises(RefusedError, match="asks for a password"):
            role(PGUSER="plain")
        assert role(PGUSER="plain", PGPASSWORD="of-file") == "plain"
        with pytest.raises(RefusedError, match="authentication failed") as refused:
            role(PGUSER="plain", PGPASSWORD="wrong7")
        assert "wrong7" not in str(refused.value)
        monkeypatch.setenv("PGPASSFILE", str(file))
        assert role(PGUSER="plain") == "plain"
        service.write_text(f"[mine]\nhost={server.folder}\nuser=plain\ndbname=postgres\n")
        monkeypatch.setenv("PGSERVICEFILE", str(service))
        assert role(PGSERVICE="mine") == "plain"


def children() -> list[int]:
    """Return the processes that ask a PostgreSQL for this one."""
    texts = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    mine = [int(word) for text in texts for word in text.split()]
    return [pid for pid in mine if "postgres_child" in Path(f"/proc/{pid}/cmdline").read_text()]


def admit(server: Postgres, *lines: str) -> None:
    """Replace pg_hba.conf, and wait until it counts."""
    path = server.folder / "data" / "pg_hba.conf"
    before = server.log.read_text().count("received SIGHUP")
    path.write_text("\n".join(lines) + "\n")
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: server.log.read_text().count("received SIGHUP") > before, "it was read")


def test_a_server_that_rejects_us_is_captured_all_the_same(own: Callable[..., Postgres]) -> None:
    with own() as server, row_lock(server, 5) as holder:
        admit(server, "local all all reject")
        with connected(server) as connection, pytest.raises(RefusedError, match=r"pg_hba\.conf"):
            connection.open(PATIENCE)
        said = first_lines(server)
        assert "from the server's memory: the server refuses 'nobody'" in said
        assert f"SELECT pg_terminate_backend({holder});" in said
        admit(server, "local all all trust")
        assert lock_waits(server) == 5


def test_a_server_that_is_stopped_costs_the_deadline(
    own: Callable[..., Postgres], tmp_path: Path
) -> None:
    with own() as server, row_lock(server, 5) as holder:
        before = set(server.backends())
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with connected(server) as connection:
                with pytest.raises(LateError, match="connecting has taken"):
                    connection.open(0.5)
                with pytest.raises(LateError):
                    connection.open(0.5)
            assert children() == []
            shot = take(tmp_path, "-p", server.pid, "--sql-deadline", 1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        notes = [note.message for note in shot.capture.notes if note.code == "sessions"]
        assert any("connecting has taken" in note for note in notes), notes
        assert shot.analysis["findings"][0]["blocker"]["tid"] == holder
        wait_until(lambda: set(server.backends()) == before, "no connection was lost, none stayed")


def by_titles(server: Postgres) -> float:
    """Return how many connections of clients there are, without one more."""
    with closing(Backends(server.pid)) as backends:
        return backends.collect().values["backends.total"]


def test_a_server_that_is_full_is_captured_all_the_same(own: Callable[..., Postgres]) -> None:
    with (
        own("max_connections=6", "superuser_reserved_connections=0") as server,
        row_lock(server, 2) as holder,
        ExitStack() as stack,
    ):
        # By titles: a question would take the slot for a moment.
        wait_until(lambda: by_titles(server) == 3, "the one that asked before is gone")
        stack.callback(wait_until, server.answers, "there is a slot again")
        for _ in range(3):
            more = Child([*server.psql("SELECT 1"), "-c", HOLD], server.folder / "clients.log")
            stack.callback(more.end)
        wait_until(lambda: by_titles(server) == 6, "no slot is left")
        with connected(server) as connection, pytest.raises(ConnectError, match=r"clients|slots"):
            connection.open(PATIENCE)
        said = first_lines(server)
        assert f"SELECT pg_terminate_backend({holder});" in said
        assert "from the server's memory: no connection as 'nobody'" in said


def test_a_role_that_sees_nothing_is_no_calm(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN")
    with row_lock(server, 4) as holder:
        monkeypatch.setenv("PGUSER", "plain")
        said = first_lines(server)
        assert "GRANT pg_monitor TO plain" in said
        assert f"SELECT pg_terminate_backend({holder});" in said
        doctor = run("doctor", "-p", server.pid)
        assert "degraded sql-rights" in words(doctor.stdout)
        assert "-> GRANT pg_monitor TO plain" in words(doctor.stdout)
        server.execute("GRANT pg_monitor TO plain")
        assert "Not known" not in first_lines(server)
    with (
        connected(server, PGUSER="plain") as connection,
        pytest.raises(StatementError, match="read-only"),
    ):
        connection.ask(lambda session: session.run("CREATE TABLE public.x ()"), PATIENCE)


def test_without_psycopg_a_line_says_so(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util, importlib.machinery\n"
        "find = importlib.machinery.PathFinder.find_spec\n"
        "importlib.machinery.PathFinder.find_spec = lambda name, *rest: (\n"
        "    None if name == 'psycopg' else find(name, *rest))\n"
    )
    with row_lock(server, 3) as holder:
        path = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{path}")
        said = first_lines(server)
        assert "needs the Python package psycopg" in said
        assert f"SELECT pg_terminate_backend({holder});" in said
        doctor = words(run("doctor", "-p", server.pid).stdout)
        assert "-> pip install 'stallscope[postgres]'" in doctor


def test_a_prepared_transaction_has_no_session(own: Callable[..., Postgres]) -> None:
    with own("max_prepared_transactions=3") as server:
        server.execute("CREATE TABLE t (id int)", "BEGIN; LOCK t; PREPARE TRANSACTION 'x'")
        waiting = Child(server.psql("SELECT * FROM t"), server.folder / "clients.log")
        try:
            wait_until(lambda: lock_waits(server) == 1, "it waits")
            with connected(server) as connection:
                found = postgres_sessions.fetch(connection, PATIENCE)
            assert found.waits == ()
            assert "wait for a prepared transaction" in found.notes[0]
            server.execute("ROLLBACK PREPARED 'x'")
        finally:
            waiting.end()


def test_functions_of_a_database_are_not_called(own: Callable[..., Postgres]) -> None:
    """The owner of a database can put functions before those of the server."""
    with own() as server:
        server.execute(
            "CREATE DATABASE trap",
            "ALTER DATABASE trap SET search_path = public, pg_catalog",
        )
        script = (
            "CREATE TABLE seen (n int); CREATE VIEW public.pg_locks AS SELECT 1 AS pid;"
            " CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
            " AS $$ INSERT INTO public.seen VALUES (1) RETURNING now() $$"
        )
        done = Child([*server.psql(script), "-d", "trap"], server.folder / "clients.log")
        done.succeed("psql")
        with connected(server, PGDATABASE="trap") as connection:
            found = postgres_sessions.fetch(connection, PATIENCE)
            assert found.reason is None
            rows = connection.ask(lambda s: s.select("SELECT count(*) FROM public.seen"), PATIENCE)
            assert rows == [["0"]]


def test_the_agent_has_sessions_and_names_the_blocked(
    own: Callable[..., Postgres], tmp_path: Path
) -> None:
    """Two that wait are too few for backend-locks, but they wait for long."""
    with (
        own() as server,
        row_lock(server, 2) as holder,
        idle_transactions(server, *[["BEGIN"]] * 5),
    ):
        done = run("cron", "-p", server.pid, "--dest", tmp_path / "store", "--seconds", 25)
        listed = run("incidents", "--dest", tmp_path / "store", "--json")
    assert done.returncode == 0, done.stderr
    (incident,) = json.loads(listed.stdout)["incidents"]
    assert incident["trigger"] == "backend-blocked"
    assert incident["ending"] == f"SELECT pg_terminate_backend({holder});"
    file = next(tmp_path.glob("store/incidents/*/**/*.sessions.json"))
    sessions = json.loads(file.read_text())["sessions"]
    assert sessions["reason"] is None
    assert {wait["owner"] for wait in sessions["waits"]} >= {holder}
    (text,) = tmp_path.glob("store/incidents/*/**/lock-waits*")
    assert f"connection {holder} of postgres" in text.read_text()
    assert "public.account" in text.read_text()

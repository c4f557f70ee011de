# SPDX-License-Identifier: Apache-2.0
"""Connections to real servers: what it gives, and what it does when they hang or end."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from stallscope.collectors.sql import asking, protocol
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import ConnectError, LateError, RefusedError, SqlError
from stallscope.collectors.sql.heartbeat import Heartbeat
from stallscope.collectors.sql.login import Login, Tls
from stallscope.collectors.sql.processlist import Processlist
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.status import Status
from tests.live.shots import ON_ONE_SERVER
from tests.support.servers import MEMORY, PATIENCE, MariaDB, MySQL55, SqlServer, wait_until
from tests.support.servers.clients import idle_connections, running_statements

TRIES = 200
GATE = "SELECT GET_LOCK('gate', 3600)"


def login(server: SqlServer, user: str = "root", password: str | None = None) -> Login:
    return Login(user=user, password=password, socket=str(server.socket))


@pytest.fixture
def connection(server: SqlServer) -> Iterator[Connection]:
    with closing(Connection(login(server))) as found:
        yield found


@pytest.fixture
def patient_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of a session's settings what ends a statement that takes long."""
    settings = [
        setting for setting in protocol.SESSION if not setting.split(" = ")[0].endswith("_time")
    ]
    assert len(settings) == len(protocol.SESSION) - 2
    monkeypatch.setattr(protocol, "SESSION", settings)


def states(pid: int) -> set[str]:
    """Return the states of a process' threads."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


@contextmanager
def stopped(server: SqlServer) -> Iterator[None]:
    """Stop a server of our own as a whole: each thread does so when it runs next."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: states(server.pid) == {"T"}, "all threads are stopped")
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def seconds_in(error: object, words: str) -> float:
    """Return the seconds that an error names after these words."""
    match = re.search(words + r" (\d+\.\d) s", str(error))
    assert match is not None, error
    return float(match[1])


def test_facts(server: SqlServer, connection: Connection) -> None:
    facts = connection.open(PATIENCE)
    assert facts.version.text == server.version()
    assert facts.version.mariadb is isinstance(server, MariaDB)
    assert facts.version.numbers[:2] in ((10, 11), (5, 5), (9, 7))
    assert facts.listener_pid == server.pid
    assert facts.connection in server.connection_ids()


def test_session_holds_nothing_up(server: SqlServer, connection: Connection) -> None:
    asked = "SELECT @@autocommit, @@lock_wait_timeout, @@innodb_lock_wait_timeout, @@sql_mode"
    rows = connection.ask(lambda session: session.select(asked), PATIENCE)
    assert rows == [(1, 1, 1, "")]
    server.execute(
        "CREATE DATABASE IF NOT EXISTS held", "CREATE TABLE IF NOT EXISTS held.t (a INT)"
    )
    with pytest.raises(SqlError, match="refused"):
        connection.ask(lambda session: session.run("DROP TABLE held.t2"), PATIENCE)
    # What it has read it does not hold: a DDL goes through.
    connection.ask(lambda session: session.select("SELECT * FROM held.t"), PATIENCE)
    server.execute(
        f"SET lock_wait_timeout = {PATIENCE:.0f}",
        "ALTER TABLE held.t ADD COLUMN b INT",
        "SET lock_wait_timeout = DEFAULT",
        "DROP TABLE held.t",
    )


def test_statements_are_tagged(server: SqlServer, connection: Connection) -> None:
    rows = connection.ask(lambda session: session.select("SHOW PROCESSLIST"), PATIENCE)
    own = connection.facts
    assert own is not None
    texts = [str(row[7]) for row in rows if row[0] == own.connection]
    assert len(texts) == 1
    assert texts[0].startswith("/* stallscope ")


def test_status(server: SqlServer, connection: Connection) -> None:
    server.wait_until_alone(connection.open(PATIENCE).connection)
    everything = Status(connection, PATIENCE).collect()
    assert everything.source == "status"
    assert everything.values["Threads_connected"] >= 2
    assert everything.values["Uptime"] >= 0
    assert len(everything.values) > 250
    some = Status(connection, PATIENCE, names=("Questions", "Threads_running", "No_such")).collect()
    assert sorted(some.values) == ["Questions", "Threads_running"]
    assert some.values["Questions"] > everything.values["Questions"]


def test_leaving_is_no_aborted_client(server: SqlServer) -> None:
    server.wait_until_alone()
    before = server.status("Aborted_clients")
    with closing(Connection(login(server))) as connection:
        number = connection.open(PATIENCE).connection
    wait_until(lambda: number not in server.connection_ids(), "it has left")
    assert server.status("Aborted_clients") == before


@ON_ONE_SERVER
def test_leaving_while_an_answer_comes_is_no_aborted_client(
    server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", PATIENCE)
    server.wait_until_alone()
    before = server.status("Aborted_clients")
    connection = Connection(login(server))
    number = connection.open(PATIENCE).connection
    asked: list[str] = []

    def ask(session: SqlSession) -> None:
        asked.append("first")
        session.run("SELECT SLEEP(0.3)")
        session.run("SELECT 1")
        asked.append("second")

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(connection.ask, ask, PATIENCE)
        wait_until(lambda: asked, "the question is asked")
        connection.close()
        with pytest.raises(ConnectError, match="the connection was closed"):
            answer.result()
    wait_until(lambda: number not in server.connection_ids(), "it has left")
    assert server.status("Aborted_clients") == before
    assert asked == ["first"]  # nobody waits for more


def test_heartbeat(connection: Connection) -> None:
    connection.open(PATIENCE)
    sample = Heartbeat(connection, PATIENCE).collect()
    assert 0 < sample.values["heartbeat.ms"] <= sample.elapsed_ms


def test_processlist_counts(server: SqlServer, connection: Connection) -> None:
    collector = Processlist(connection, PATIENCE)

    def counts() -> dict[str, float]:
        values = collector.collect().values
        clients = values["processlist.total"] - values["processlist.background"]
        assert clients == values["processlist.running"] + values["processlist.sleeping"]
        names = ("running", "sleeping", "state.User sleep", "command.Query")
        return {name: values.get(f"processlist.{name}", 0) for name in names}

    # Those that were closed leave, and those that were answered are idle, when they run again.
    server.control()
    alone = {"running": 0, "sleeping": 1, "state.User sleep": 0, "command.Query": 0}
    wait_until(lambda: counts() == alone, "the test's own connection is the only one")
    with (
        idle_connections(server, 7),
        running_statements(server, "information_schema", ["SELECT SLEEP(3600)"] * 3),
    ):
        busy = {"running": 3, "sleeping": 8, "state.User sleep": 3, "command.Query": 3}
        wait_until(lambda: counts() == busy, "three statements run, and seven connections do not")


def test_processlist_needs_its_privilege(server: SqlServer) -> None:
    server.execute("CREATE USER nobody_@localhost IDENTIFIED BY 'pw'")
    try:
        with closing(Connection(login(server, "nobody_", "pw"))) as connection:
            connection.open(PATIENCE)
            with pytest.raises(SqlError, match="GRANT PROCESS"):
                Processlist(connection, PATIENCE).collect()
    finally:
        server.execute("DROP USER nobody_@localhost")


def test_refused_password_is_one_line_and_not_repeated(server: SqlServer) -> None:
    before = server.status("Connections")
    with closing(Connection(login(server, "nobody_", "wrong"))) as connection:
        with pytest.raises(RefusedError, match=r"refuses 'nobody_' at .*1045.*denied") as first:
            connection.open(PATIENCE)
        assert "\n" not in str(first.value)
        assert "wrong" not in str(first.value)
        for _ in range(20):
            with pytest.raises(RefusedError, match="tried again in"):
                connection.open(PATIENCE)
    assert server.status("Connections") == before + 1


def test_stopped_server(require: Callable[..., None]) -> None:
    """A server that hangs has one statement of ours, and its late answer is dropped."""
    require("mariadb")
    with MariaDB(parent=MEMORY) as server, closing(Connection(login(server))) as connection:
        number = connection.open(PATIENCE).connection
        collector = Counting(connection, 0.3)
        with stopped(server):
            begin = time.monotonic()
            with pytest.raises(LateError) as late:
                collector.collect()
            took = time.monotonic() - begin
            assert 0.3 <= seconds_in(late.value, "no answer to status since") <= took + 0.05
            # A thread that got no CPU in all the time did not send it.
            while not collector.asked:
                with pytest.raises(LateError):
                    collector.collect()
            begin = time.monotonic()
            for _ in range(100):
                with pytest.raises(LateError, match=r"no answer to status since"):
                    collector.collect()
            waited = time.monotonic() - begin
            assert waited < 100 * collector.deadline / 2, "callers behind a late answer wait"
            assert connection.waiting_since() is not None
            assert collector.asked == 1
        wait_until(lambda: connection.waiting_since() is None, "the late answer came")
        assert connection.dropped >= 1
        collector.deadline = PATIENCE
        after = collector.collect().values
        assert after["Threads_connected"] >= 1
        assert connection.open(PATIENCE).connection == number, "it is the same connection"
        assert connection.connects == 1
        # Two: the one while it was stopped and the one after.
        assert after["Com_show_status"] == collector.asked == 2


class Counting(Status):
    """Counts how often it is asked for on the connection."""

    asked = 0

    def read(self, session: SqlSession) -> dict[str, float]:
        self.asked += 1
        return super().read(session)


def test_stopped_while_connecting(require: Callable[..., None]) -> None:
    require("mariadb")
    with MariaDB(parent=MEMORY) as server, closing(Connection(login(server))) as connection:
        with stopped(server):
            begin = time.monotonic()
            with pytest.raises(LateError) as late:
                connection.open(0.2)
            took = time.monotonic() - begin
            assert 0.2 <= seconds_in(late.value, "connecting has taken") <= took + 0.05
            begin = time.monotonic()
            with pytest.raises(LateError):
                connection.open(PATIENCE)
            assert time.monotonic() - begin < PATIENCE / 2
        wait_until(lambda: connection.waiting_since() is None, "the greeting came")
        assert connection.open(PATIENCE).listener_pid == server.pid
        assert connection.connects == 1


def test_close_while_the_server_hangs(require: Callable[..., None]) -> None:
    require("mariadb")
    with MariaDB(parent=MEMORY) as server:
        connection = Connection(login(server))
        connection.open(PATIENCE)
        with stopped(server):
            seen: list[SqlError] = []

            def ask() -> None:
                try:
                    connection.ask(lambda session: session.run("DO 1"), 60.0)
                except SqlError as error:
                    seen.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            wait_until(lambda: connection._worker.question is not None, "the question is asked")
            connection.close()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            assert [str(error) for error in seen] == ["the connection was closed"]
            worker = connection._worker._thread
            assert worker is not None
            worker.join(PATIENCE)
            assert not worker.is_alive()


def test_restart(require: Callable[..., None]) -> None:
    """An ended server is searched for less and less often, and found again."""
    require("mariadb")
    with MariaDB(parent=MEMORY) as server, closing(Connection(login(server))) as connection:
        first = connection.open(PATIENCE)
        server.shut_down()
        with pytest.raises(ConnectError):
            connection.ask(lambda session: session.run("DO 1"), PATIENCE)
        refused = 0
        for _ in range(TRIES):
            with pytest.raises(ConnectError) as failed:
                connection.open(PATIENCE)
            # The others are those that did try.
            refused += "tried again in" in str(failed.value)
        assert refused > TRIES - 20, "callers are refused at once"
        server.start()

        def back() -> bool:
            try:
                connection.open(PATIENCE)
            except ConnectError:
                return False
            return True

        wait_until(back, "the connection is open again")
        again = connection.open(PATIENCE)
        assert again.listener_pid == server.pid != first.listener_pid


@ON_ONE_SERVER
def test_killed_connection_comes_back_with_pauses(
    server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(f"stallscope.collectors.sql.retries.{pause}", PATIENCE)
    with closing(Connection(login(server))) as connection:
        number = connection.open(PATIENCE).connection
        server.execute(f"KILL {number}")
        wait_until(lambda: number not in server.connection_ids(), "it is killed")
        with pytest.raises(ConnectError, match="ended"):
            connection.ask(lambda session: session.run("DO 1"), PATIENCE)
        with pytest.raises(ConnectError, match="tried again in"):
            connection.ask(lambda session: session.run("DO 1"), PATIENCE)


def wait_at_the_gate(
    server: SqlServer, connection: Connection, *, name: str = ""
) -> tuple[list[str], Callable[[SqlSession], None]]:
    """Let a question of the connection wait for the gate; return what was asked, and the
    question."""
    asked: list[str] = []

    def ask(session: SqlSession) -> None:
        asked.append(GATE)
        session.select(GATE)

    server.query(GATE)
    while not asked:
        with pytest.raises(LateError):
            connection.ask(ask, 0.1, name=name)
    return asked, ask


@ON_ONE_SERVER
@pytest.mark.usefixtures("patient_session")
def test_long_statement_is_late_and_others_are_reported(server: SqlServer) -> None:
    with closing(Connection(login(server))) as connection:
        connection.open(PATIENCE)
        asked, _ = wait_at_the_gate(server, connection)
        with pytest.raises(LateError, match="no answer since"):
            Status(connection, PATIENCE).collect()
        late = Heartbeat(connection, PATIENCE).collect()
        assert list(late.values) == ["heartbeat.unanswered_ms"]
        assert "no answer since" in (late.error or "")
        assert late.elapsed_ms >= 100
        server.query("SELECT RELEASE_LOCK('gate')")
        wait_until(lambda: connection.waiting_since() is None, "the lock was had")
        assert asked == [GATE]
        after = Heartbeat(connection, PATIENCE).collect()
        assert 0 < after.values["heartbeat.ms"] <= after.elapsed_ms


@ON_ONE_SERVER
@pytest.mark.usefixtures("patient_session")
def test_a_question_that_hangs_alone_leaves_the_heartbeat_and_others(server: SqlServer) -> None:
    server.wait_until_alone()
    aborted = server.status("Aborted_clients")
    beat = Connection(login(server))
    with closing(beat), closing(Connection(login(server), lives=beat.answered_since)) as connection:
        number = connection.open(PATIENCE).connection
        asked, ask = wait_at_the_gate(server, connection, name="replication")
        for _ in range(5):
            sample = Heartbeat(beat, PATIENCE).collect()
            assert 0 < sample.values["heartbeat.ms"] < 1000 * PATIENCE
            assert Status(connection, PATIENCE).collect().values["Threads_running"] >= 1
            with pytest.raises(LateError, match="no answer to replication since"):
                connection.ask(ask, PATIENCE, name="replication")
        assert connection.open(PATIENCE).connection != number
        assert (connection.connects, connection.replaced, asked) == (2, 1, [GATE])
        server.query("SELECT RELEASE_LOCK('gate')")
        wait_until(lambda: connection.replaced == 0, "the late answer came")
        wait_until(lambda: number not in server.connection_ids(), "its connection has left")
        assert connection.dropped == 1
    server.wait_until_alone()
    assert server.status("Aborted_clients") == aborted


@ON_ONE_SERVER
def test_questions_in_time_take_turns(server: SqlServer) -> None:
    with closing(Connection(login(server))) as connection:
        connection.open(PATIENCE)
        answers: list[object] = []

        def ask(number: int) -> None:
            row = connection.ask(lambda s: s.select(f"SELECT {number}, SLEEP(0.02)"), PATIENCE)
            answers.append(row[0][0])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, answers)) == sorted(map(str, range(10)))
        assert connection.dropped == 0


def test_nobody_listens() -> None:
    nowhere = Login(user="root", socket="/tmp/no-such-socket")
    said = "no server answers at /tmp/no-such-socket"
    with closing(Connection(nowhere)) as connection, pytest.raises(ConnectError, match=said):
        connection.open(PATIENCE)


def test_what_answers_is_no_mysql() -> None:
    """Somebody else's greeting, hostile or not, is one line."""
    for greeting in (b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00" * 64, b"\x05\x00\x00\x00\x0a9.7\x00x"):
        with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
            port = listening.getsockname()[1]
            spoken = pool.submit(_speak, listening, greeting)
            with (
                closing(Connection(Login(user="x", host="127.0.0.1", port=port))) as connection,
                pytest.raises(ConnectError) as failed,
            ):
                connection.open(PATIENCE)
            spoken.result()
        assert "\n" not in str(failed.value)


def _speak(listening: socket.socket, greeting: bytes) -> None:
    end, _ = listening.accept()
    with end:
        end.sendall(greeting)


def test_tls_demanded_of_a_server_without_it(mysql55: MySQL55) -> None:
    refused = Login(user="root", socket=str(mysql55.socket), tls=Tls(mode="required"))
    with closing(Connection(refused)) as connection, pytest.raises(ConnectError, match="SSL"):
        connection.open(PATIENCE)


@ON_ONE_SERVER
@pytest.mark.usefixtures("patient_session")
def test_what_nobody_waits_for_is_not_asked_further(server: SqlServer) -> None:
    with closing(Connection(login(server))) as connection:
        connection.open(PATIENCE)
        asked: list[str] = []

        def several(session: SqlSession) -> None:
            for statement in (GATE, "SELECT 2", "SELECT 3"):
                asked.append(statement)
                session.select(statement)

        server.query(GATE)
        while not asked:
            with pytest.raises(LateError):
                connection.ask(several, 1.0)
        server.query("SELECT RELEASE_LOCK('gate')")
        wait_until(lambda: connection.waiting_since() is None, "the lock was had")
        assert asked == [GATE, "SELECT 2"]
        assert connection.open(PATIENCE).version.text == server.version()
        assert connection.connects == 1

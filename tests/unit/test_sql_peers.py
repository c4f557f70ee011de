# SPDX-License-Identifier: Apache-2.0
"""No password, and no answer made of one, goes to a program that is not the server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.collectors import processes
from stallscope.collectors.processes import Selector, Server
from stallscope.collectors.sql import credentials, peers, postgres_login
from stallscope.collectors.sql.asking import ServerConnection
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import ConnectError, RefusedError, SqlError
from stallscope.collectors.sql.login import Login, Tls
from stallscope.collectors.sql.optionfiles import Sources
from stallscope.collectors.sql.peers import Peer
from stallscope.collectors.sql.postgres_login import PostgresLogin
from stallscope.collectors.sql.postgres_session import PostgresConnection
from tests.support.impostors import PERSON, SERVICE, Impostor, impostor, open_folder
from tests.support.servers import PATIENCE
from tests.support.servers.ports import free_port

__all__: list[str] = []

pytestmark = pytest.mark.needs("root")

PASSWORD = "hunter2-secret"
PROGRAMS = ("mariadbd", "postgres")
WAYS = ("socket", "tcp")
STRANGER = rf"user {PERSON} answers there"


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


def peer_of(pid: int) -> Peer:
    """Return what a login has of a server that was named by its pid."""
    return peers.of(processes.find_server(str(pid), Selector()))


def connection(
    program: str, way: str, folder: Path, port: int, peer: Peer | None, **more: object
) -> ServerConnection[Any]:
    by_socket = way == "socket"
    if program == "postgres":
        made = PostgresLogin(
            user="me",
            password=PASSWORD,
            folder=str(folder) if by_socket else None,
            shown=f"{folder}/.s.PGSQL.5432",
            host=None if by_socket else "127.0.0.1",
            port=5432 if by_socket else port,
            peer=peer,
        )
        return PostgresConnection(msgspec.structs.replace(made, **more))
    login = Login(
        user="me",
        password=PASSWORD,
        socket=str(folder / "s.sock") if by_socket else None,
        host=None if by_socket else "127.0.0.1",
        port=port,
        peer=peer,
    )
    return Connection(msgspec.structs.replace(login, **more))


def error_of(tried: ServerConnection[Any]) -> ConnectError:
    with closing(tried), pytest.raises(ConnectError) as failed:
        tried.ask(lambda session: None, PATIENCE)
    assert PASSWORD not in str(failed.value)
    assert "\n" not in str(failed.value)
    return failed.value


def got_no_password(program: str, other: Impostor) -> None:
    """It was sent nothing at all, or the name of the user: PostgreSQL's clients speak first."""
    sent = other.end()
    assert PASSWORD.encode() not in sent
    if program != "postgres":
        assert sent == b""
    assert len(sent) < 200


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_another_user_than_the_servers_is_not_logged_in_at(
    folder: Path, program: str, way: str
) -> None:
    port = free_port()
    other_folder = folder / "server"
    other_folder.mkdir(mode=0o777)
    other_folder.chmod(0o777)
    with (
        impostor(other_folder, program, user=SERVICE) as server,
        impostor(folder, program, port=port) as other,
    ):
        error = error_of(connection(program, way, folder, port, peer_of(server.pid)))
        got_no_password(program, other)
    assert isinstance(error, RefusedError)
    assert f"expected is {program} (pid {server.pid}), of user" in str(error)
    assert STRANGER in str(error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_that_has_ended_is_not_logged_in_at(folder: Path, program: str, way: str) -> None:
    """Also the same user's next program is not: what it is must be known first."""
    port = free_port()
    with impostor(folder, program, user=SERVICE) as server:
        peer = peer_of(server.pid)
    with impostor(folder, program, user=SERVICE, port=port) as other:
        error = error_of(connection(program, way, folder, port, peer))
        got_no_password(program, other)
    assert f"{program} (pid {server.pid}) has ended" in str(error)
    assert not isinstance(error, RefusedError), "the next login is soon"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_address_alone_is_not_logged_in_at_where_a_person_answers(
    folder: Path, program: str, way: str
) -> None:
    port = free_port()
    with impostor(folder, program, port=port) as other:
        error = error_of(connection(program, way, folder, port, None))
        got_no_password(program, other)
    assert "expected is an account of the system" in str(error)
    assert STRANGER in str(error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_who_was_named_gets_the_login(folder: Path, program: str, way: str) -> None:
    """The counter-proof: these programs do get a password that is sent to them."""
    port = free_port()
    with impostor(folder, program, port=port) as server:
        peer = peer_of(server.pid)
        more: dict[str, object] = {"tls": Tls("disabled")} if program == "mariadbd" else {}
        tried = connection(program, way, folder, port, peer, **more)
        with closing(tried), pytest.raises(SqlError):
            tried.ask(lambda session: None, 1.0)
        sent = server.end()
    assert (PASSWORD.encode() in sent) or (program == "mariadbd" and len(sent) > 50)


def test_verified_tls_is_not_left_out(folder: Path) -> None:
    port = free_port()
    with impostor(folder, "mariadbd", port=port) as other:
        tls = Tls("verify-ca")
        error = error_of(connection("mariadbd", "tcp", folder, port, None, tls=tls))
        got_no_password("mariadbd", other)
    assert "SSL" in str(error)


def test_another_host_is_only_asked_over_verified_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in no table of this host is on another."""
    monkeypatch.setattr(peers, "_in_table", lambda table, needle: None)
    port = free_port()
    with open_folder() as folder, impostor(folder, "mariadbd", port=port) as other:
        error = error_of(connection("mariadbd", "tcp", folder, port, peer_of(other.pid)))
        got_no_password("mariadbd", other)
    assert "only TLS that verifies the server can show that" in str(error)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_name_alone_does_not_mean_a_persons_program(
    folder: Path, program: str, tmp_path: Path
) -> None:
    """Commands that are given a name capture it, and keep the password to themselves."""
    options = tmp_path / "my.cnf"
    options.write_text(f"[client]\nuser=me\npassword={PASSWORD}\n")

    def tried(server: Server) -> ConnectError:
        if program == "postgres":
            login, _ = postgres_login.find(server, environment={"PGPASSWORD": PASSWORD})
            return error_of(PostgresConnection(login))
        found, _ = credentials.find(Sources(defaults_file=str(options)), server, environment={})
        return error_of(Connection(found))

    with impostor(folder, program) as other:
        named = processes.find_server(str(other.pid), Selector())
        by_name = msgspec.structs.replace(named, chosen=False)
        error = tried(by_name)
        got_no_password(program, other)
    assert f"{program} (pid {other.pid}) is of user {PERSON}: if it is meant" in str(error)


@pytest.mark.parametrize(
    ("listens", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")]
)
def test_the_kernel_knows_who_has_accepted_and_not_who_will(listens: str, host: str) -> None:
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with (
        socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::") as server,
        socket.create_connection((host, server.getsockname()[1])) as client,
    ):
        ends = client.getpeername(), client.getsockname()
        assert peers._accepted_by(*ends, None) is None
        accepted, _ = server.accept()
        with accepted:
            assert peers._accepted_by(*ends, None) == os.geteuid()

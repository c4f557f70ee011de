# SPDX-License-Identifier: Apache-2.0
"""TCP and TLS to a MySQL that made its own certificates."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import ConnectError, RefusedError
from stallscope.collectors.sql.login import Login, Tls
from tests.support.servers import PATIENCE, MySQL97
from tests.support.servers.ports import free_port


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(require: Callable[..., None], port: int) -> Iterator[MySQL97]:
    require("mysql97")
    with MySQL97("--skip-networking=OFF", "--bind-address=127.0.0.1", f"--port={port}") as found:
        found.execute(
            "CREATE USER safe@'127.0.0.1' IDENTIFIED BY 'pw' REQUIRE SSL",
            "CREATE USER plain@'127.0.0.1' IDENTIFIED BY 'pw'",
        )
        yield found


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ca")
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=x", "-keyout", folder / "key.pem", "-out", folder / "ca.pem"),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    return folder / "ca.pem"


def cipher(port: int, user: str, tls: Tls) -> str:
    """Return the cipher of the connection, empty where it is not encrypted."""
    login = Login(user=user, password="pw", host="127.0.0.1", port=port, tls=tls)
    with closing(Connection(login)) as connection:
        rows = connection.ask(lambda s: s.select("SHOW STATUS LIKE 'Ssl_cipher'"), PATIENCE)
        assert connection.facts is not None
        assert connection.facts.listener_pid is None
    return str(rows[0][1])


def ca_of(server: MySQL97) -> str:
    return str(server.data / "ca.pem")


def test_encrypted(server: MySQL97, port: int) -> None:
    assert cipher(port, "safe", Tls(mode="preferred"))
    assert cipher(port, "safe", Tls(mode="required"))
    assert cipher(port, "safe", Tls(mode="verify-ca", ca=ca_of(server)))
    assert cipher(port, "plain", Tls(mode="disabled")) == ""


def test_not_encrypted_is_refused_by_the_account(server: MySQL97, port: int) -> None:
    with pytest.raises(RefusedError, match="refuses 'safe' at 127"):
        cipher(port, "safe", Tls(mode="disabled"))


def test_another_ca(server: MySQL97, port: int, other_ca: Path) -> None:
    with pytest.raises(ConnectError, match="certificate verify failed"):
        cipher(port, "plain", Tls(mode="verify-ca", ca=str(other_ca)))


def test_another_name(server: MySQL97, port: int) -> None:
    """The certificate that MySQL makes is for no host."""
    with pytest.raises(ConnectError, match="certificate verify failed"):
        cipher(port, "plain", Tls(mode="verify-identity", ca=ca_of(server)))


def test_a_missing_ca_is_a_line(server: MySQL97, port: int, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="TLS files of the options cannot be used"):
        cipher(port, "plain", Tls(mode="verify-ca", ca=str(tmp_path / "none.pem")))


def test_what_answers_is_no_mysql() -> None:
    """Somebody else's greeting, hostile or not, is one line."""
    for greeting in (b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00" * 64, b"\x05\x00\x00\x00\x0a9.7\x00x"):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            login = Login(user="x", host="127.0.0.1", port=listening.getsockname()[1])
            with closing(Connection(login)) as connection, pytest.raises(ConnectError) as failed:
                _greet(listening, greeting, connection)
            assert "\n" not in str(failed.value)


def _greet(listening: socket.socket, greeting: bytes, connection: Connection) -> None:
    def speak() -> None:
        end, _ = listening.accept()
        with end:
            end.sendall(greeting)

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        connection.open(PATIENCE)
    finally:
        thread.join()

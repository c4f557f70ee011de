# SPDX-License-Identifier: Apache-2.0
"""Logins at a server that follows a script, and is hostile: the answers, and the messages."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.collectors.sql import protocol
from stallscope.collectors.sql.authentication import parsec_answer
from stallscope.collectors.sql.failures import AbortedLoginError, ConnectError, RefusedError
from stallscope.collectors.sql.login import Login, Tls
from stallscope.collectors.sql.protocol import connect

__all__: list[str] = []

PLUGIN_AUTH, SECURE_CONNECTION, PROTOCOL_41 = 1 << 19, 1 << 15, 1 << 9
CAPABILITIES = PLUGIN_AUTH | SECURE_CONNECTION | PROTOCOL_41
CHALLENGE = bytes(range(1, 33))
SALT = b"eighteen-bytes-it-"
DENIED = b"\xff" + struct.pack("<H", 1045) + b"#28000Access denied for user"
SECONDS = 30.0


class Server:
    """Speaks the protocol on one end of a pair of sockets."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._file = end.makefile("rb")
        self._sequence = 0
        self.answers: list[bytes] = []

    def close(self) -> None:
        self._file.close()
        self._end.close()

    def send(self, data: bytes) -> None:
        self._end.sendall(len(data).to_bytes(3, "little") + bytes([self._sequence]) + data)
        self._sequence = (self._sequence + 1) % 256

    def receive(self) -> bytes:
        head = self._file.read(4)
        if len(head) < 4:
            raise ConnectionError
        self._sequence = (head[3] + 1) % 256
        self.answers.append(self._file.read(int.from_bytes(head[:3], "little")))
        return self.answers[-1]

    def greet(self) -> None:
        low, high = CAPABILITIES & 0xFFFF, CAPABILITIES >> 16
        self.send(
            b"\x0a5.5.5-11.8.9-MariaDB\0"
            + struct.pack("<I", 7)
            + b"scramble\0"
            + struct.pack("<HBHHB", low, 33, 2, high, 21)
            + b"\0" * 10
            + b"scramble-end\0"
            + b"mysql_native_password\0"
        )
        self.receive()

    def switch(self, plugin: bytes, challenge: bytes = CHALLENGE) -> bytes:
        self.send(b"\xfe" + plugin + b"\0" + challenge + b"\0")
        return self.receive()


def tried(
    script: Callable[[Server], object], tls: Tls | None = None
) -> tuple[Server, ConnectError]:
    """Log in at a server that follows the script; return it, and the error."""
    ours, theirs = socket.socketpair()
    server = Server(theirs)

    def serve() -> None:
        try:
            server.greet()
            script(server)
        except (OSError, ConnectionError):
            pass
        finally:
            server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    login = Login("me", "pw", host="db", tls=tls or Tls())
    with closing(ours), pytest.raises(ConnectError) as failed:
        connect(login, ours, SECONDS)
    thread.join()
    text = str(failed.value)
    assert "\n" not in text
    assert "pw" not in text
    return server, failed.value


@pytest.mark.parametrize(
    ("plugin", "said", "answer"),
    [
        (b"auth_gssapi_client", "its plugin auth_gssapi_client is unknown", b""),
        (b"mysql_old_password", r"the format of before MySQL 4\.1", b"refused.\0"),
        (b"mysql_clear_password", "wants the password unencrypted; it was not sent", b""),
        (b"dialog", "wants the password unencrypted; it was not sent", b""),
        (b"x" * 5000 + b"\x1b[31m", "its plugin x+ is unknown", b""),
        (b"\xff\xfe\x80", "its plugin .* is unknown", b""),
    ],
)
def test_what_cannot_be_used_is_answered_and_refused(
    plugin: bytes, said: str, answer: bytes
) -> None:
    def script(server: Server) -> None:
        server.switch(plugin)
        server.send(DENIED)

    server, error = tried(script)
    assert server.answers[1:] == [answer]
    if plugin != b"\xff\xfe\x80":  # no name of a plugin at all
        assert type(error) is RefusedError
        _matches(said, error)


def _matches(said: str, error: ConnectError) -> None:
    with pytest.raises(ConnectError, match=said):
        raise error


def parsec(parameters: bytes) -> Callable[[Server], None]:
    def script(server: Server) -> None:
        assert server.switch(b"parsec") == b""
        server.send(b"\x01" + parameters)
        server.receive()
        server.send(DENIED)

    return script


@pytest.mark.parametrize("factor", [0, 1])
def test_parsec_signs_both_sides_random_bytes(factor: int) -> None:
    server, _ = tried(parsec(b"P" + bytes([factor]) + SALT))
    answer = server.answers[-1]
    seed = hashlib.pbkdf2_hmac("sha512", b"pw", SALT, 1024 << factor, 32)
    key = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    key.verify(answer[32:], CHALLENGE + answer[:32])
    with pytest.raises(InvalidSignature):
        key.verify(answer[32:], CHALLENGE + bytes(32))
    assert answer[:32] != tried(parsec(b"P" + bytes([factor]) + SALT))[0].answers[-1][:32]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (b"P\xff" + SALT, r"asks for 2\^265 rounds"),
        (b"P\x0b" + SALT, r"asks for 2\^21 rounds"),
        (b"Q\x00" + SALT, "a format that is unknown"),
        (b"P\x00short", "a format that is unknown"),
        (b"", "a format that is unknown"),
    ],
)
def test_a_hostile_parsec_costs_nothing(parameters: bytes, said: str) -> None:
    server, error = tried(parsec(parameters))
    assert server.answers[-1] == b""
    _matches(said, error)


def test_plugins_have_an_end() -> None:
    def script(server: Server) -> None:
        for _ in range(1000):
            server.switch(b"mysql_native_password")

    server, error = tried(script)
    assert isinstance(error, ConnectError)
    assert len(server.answers) < 12


def test_the_next_plugin_of_an_account_is_used() -> None:
    def script(server: Server) -> None:
        server.switch(b"auth_gssapi_client")
        server.switch(b"mysql_native_password")
        server.send(DENIED)

    server, error = tried(script)
    assert [len(answer) for answer in server.answers[1:]] == [0, 20]
    _matches("refuses 'me' at .* Access denied", error)


@settings(max_examples=30)
@given(st.binary(max_size=200), st.binary(max_size=60))
def test_any_bytes_are_one_line(packet: bytes, challenge: bytes) -> None:
    def script(server: Server) -> None:
        server.switch(b"parsec", challenge)
        server.send(packet)
        server.receive()

    tried(script)


def test_tls_that_is_not_there_is_a_login_that_was_given_up() -> None:
    _, error = tried(lambda server: None, Tls(mode="required"))
    assert type(error) is AbortedLoginError
    _matches("SSL is required but the server doesn't support it", error)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("preferred", "unsupported protocol; ssl-mode=DISABLED connects without"),
        ("required", "unsupported protocol"),
    ],
)
def test_tls_that_fails_says_why(mode: str, said: str) -> None:
    error = ssl.SSLError(1, "[SSL: UNSUPPORTED_PROTOCOL] unsupported protocol (_ssl.c:1006)")
    error.reason = "UNSUPPORTED_PROTOCOL"
    failure = protocol._connect_failure(Login("me", host="db", tls=Tls(mode=mode)), error)
    assert type(failure) is AbortedLoginError
    assert str(failure) == f"no TLS with db:3306: {said}"


def test_the_answer_of_parsec_is_what_its_key_signs() -> None:
    answer = parsec_answer(b"pw", b"s" * 32, b"c" * 32, SALT, 10)
    assert answer[:32] == b"c" * 32
    assert len(answer) == 96

# SPDX-License-Identifier: Apache-2.0
"""The authentication plugins of accounts: those that PyMySQL lacks, and those that are refused.

A plugin that cannot be used gets an empty or wrong answer, so that the server refuses the account.
Otherwise it would count a login that a client gave up, and after max_connect_errors of them refuse
the whole host.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.constants import CR

from stallscope.base import extras
from stallscope.base.errors import StallscopeError

__all__ = ["Plugins", "parsec_answer"]

Packet = Any
"""PyMySQL's packets, and its connection, have no types for what is used here."""

_BUILT_IN = "caching_sha2_password"
"""PyMySQL's own that is used as it is."""
_PLAIN = frozenset({"dialog", "mysql_clear_password"})
"""The client sends the password as it is; ``dialog`` is PAM's."""
_NOT_PLAIN = (
    "the server wants the password unencrypted; it was not sent (enable-cleartext-plugin and TLS"
    " allow it)"
)
_OLD = (
    "the password has the format of before MySQL 4.1, which protects nothing: set it again with"
    " old_passwords = 0"
)
_WRONG = b"refused.\0"
"""An answer as long as mysql_old_password's: an empty one is the right one to MySQL 5.5.9, which
compares no further than it goes."""
_NOT_KNOWN = (
    "its plugin {} is unknown to stallscope: give it an account with caching_sha2_password,"
    " mysql_native_password, ed25519, parsec or unix_socket"
)

_MOST_PLUGINS = 8
"""Of one account."""
_SCRAMBLE, _SALT, _KEY = 32, 18, 32
_LEAST_ROUNDS, _MOST_ROUNDS = 10, 20
"""As powers of 2. The server names them: a hostile one must not keep a CPU busy."""


class Plugins(dict[str, Callable[[Any], Any]]):
    """The ``auth_plugin_map`` of PyMySQL: plugin → class that answers the server.

    A class gets the connection; its ``authenticate`` the packet, and returns the server's last one.
    """

    def __init__(self, *, plain: bool) -> None:
        """``plain``: the password may be sent as it is."""
        super().__init__(
            client_ed25519=_Ed25519,
            mysql_native_password=_Native,
            mysql_old_password=_refused(_OLD, _WRONG),
            parsec=_Parsec,
            sha256_password=_Sha256,
        )
        self.left = _MOST_PLUGINS - 1
        if not plain:
            self.update(dict.fromkeys(_PLAIN, _refused(_NOT_PLAIN)))

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the class for a plugin, None where PyMySQL has it."""
        text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
        if text in self:
            return self[text]
        if not text or text == _BUILT_IN or text in _PLAIN:
            return default
        return _refused(_NOT_KNOWN.format(text[:64]))


class _Answer:
    """The base of plugins: what is answered to the server's challenge."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def authenticate(self, packet: Packet) -> Packet:
        """Answer; return the server's last packet. Raises: pymysql.err.Error."""
        return self.next(self.send(self.answer(packet.read_all())))

    def next(self, packet: Packet) -> Packet:
        """Go on with the next plugin of an account of MariaDB that has several."""
        plugins = self.connection._auth_plugin_map
        if not packet.is_auth_switch_request() or plugins.left <= 0:
            return packet
        plugins.left -= 1
        packet.read_uint8()
        name = packet.read_string()
        plugin = self.connection._get_auth_plugin_handler(name)
        return self.connection._process_auth(name, packet, plugin)

    def answer(self, challenge: bytes) -> bytes:
        raise NotImplementedError

    def send(self, data: bytes) -> Packet:
        """Send a packet, and return the next one; that of an error is raised."""
        self.connection.write_packet(data)
        return self.connection._read_packet()

    def refuse(self, why: str, answer: bytes = b"") -> Packet:
        """Answer with what the server refuses. Raises: pymysql.err.OperationalError."""
        try:
            packet = self.send(answer)
        except pymysql.err.DatabaseError:
            packet = None
        if packet is not None and packet.is_auth_switch_request():
            return self.next(packet)
        if packet is not None and packet.is_ok_packet():
            return packet  # the account has no password
        raise pymysql.err.OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, why)


def _refused(why: str, answer: bytes = b"") -> type[_Answer]:
    """Return a plugin that cannot be used."""

    class Refused(_Answer):
        def authenticate(self, packet: Packet) -> Packet:
            return self.refuse(why, answer)

    return Refused


class _Native(_Answer):
    """PyMySQL's own, which does not go on with another plugin."""

    def answer(self, challenge: bytes) -> bytes:
        from pymysql import _auth

        return bytes(_auth.scramble_native_password(self.connection.password, challenge))


class _Sha256(_Answer):
    """PyMySQL's own, which sends the password as it is by a Unix socket: the server wants RSA there
    too."""

    def authenticate(self, packet: Packet) -> Packet:
        from pymysql import _auth

        self.connection._secure = isinstance(self.connection._sock, ssl.SSLSocket)
        packet = _auth.sha256_password_auth(self.connection, packet)  # type: ignore[no-untyped-call]
        return self.next(packet)


class _Ed25519(_Answer):
    """MariaDB's ed25519: its keys are no seeds, so that only libsodium's arithmetic can sign."""

    def authenticate(self, packet: Packet) -> Packet:
        try:
            extras.require("ed25519", "the account's plugin ed25519")
        except StallscopeError as error:
            return self.refuse(str(error))
        return super().authenticate(packet)

    def answer(self, challenge: bytes) -> bytes:
        from pymysql import _auth

        return bytes(_auth.ed25519_password(self.connection.password, challenge[:_SCRAMBLE]))


class _Parsec(_Answer):
    """MariaDB's parsec, from 11.6 on: a signature of both sides' random bytes, by a key that
    PBKDF2 derives from the password and the server's salt."""

    def authenticate(self, packet: Packet) -> Packet:
        challenge = packet.read_all()
        parameters = self.send(b"").read_all().removeprefix(b"\1")
        if len(challenge) < _SCRAMBLE or len(parameters) != 2 + _SALT or parameters[:1] != b"P":
            return self.refuse("its plugin parsec has a format that is unknown to stallscope")
        rounds = _LEAST_ROUNDS + parameters[1]
        if rounds > _MOST_ROUNDS:
            return self.refuse(f"its plugin parsec asks for 2^{rounds} rounds of PBKDF2")
        password, ours = self.connection.password, os.urandom(_SCRAMBLE)
        answer = parsec_answer(password, challenge[:_SCRAMBLE], ours, parameters[2:], rounds)
        return self.next(self.send(answer))


def parsec_answer(password: bytes, theirs: bytes, ours: bytes, salt: bytes, rounds: int) -> bytes:
    """Return our random bytes, and the signature of both sides' bytes; ``rounds`` is a power of
    2."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    seed = hashlib.pbkdf2_hmac("sha512", password, salt, 1 << rounds, _KEY)
    return ours + Ed25519PrivateKey.from_private_bytes(seed).sign(theirs + ours)

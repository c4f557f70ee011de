# SPDX-License-Identifier: Apache-2.0
"""Each kind of account of each server, by its socket, by TCP, and with TLS; and what fails says
what is missing."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import AbortedLoginError, ConnectError, RefusedError
from stallscope.collectors.sql.login import Login, Tls, default_user
from tests.support.certificates import Certificates, certificates
from tests.support.servers import (
    PATIENCE,
    MariaDB,
    MariaDB118,
    MySQL55,
    MySQL97,
    SqlServer,
    wait_until,
)
from tests.support.servers.mariadb import plugins_missing, plugins_options
from tests.support.servers.ports import free_port

HOSTS = ("localhost", "127.0.0.1")
MODES = ("disabled", "preferred", "required")


class Reached:
    """A server and its port."""

    def __init__(self, server: SqlServer, port: int) -> None:
        self.server = server
        self.port = port

    def create(self, user: str, how: str) -> None:
        """Create the account for both ways to connect."""
        for host in HOSTS:
            self.server.execute(f"CREATE USER {user}@'{host}' {how}")

    def local(self, user: str, password: str | None = "pw") -> str:
        """Log in by the socket; return the cipher, empty where there is none."""
        return self._cipher(Login(user, password, socket=str(self.server.socket)))

    def remote(self, user: str, mode: str, password: str = "pw", tls: Tls | None = None) -> str:
        """Log in by TCP; return the cipher."""
        tls = Tls(mode=mode) if tls is None else tls
        return self._cipher(Login(user, password, host="127.0.0.1", port=self.port, tls=tls))

    def _cipher(self, login: Login) -> str:
        with closing(Connection(login)) as connection:
            rows = connection.ask(lambda s: s.select("SHOW STATUS LIKE 'Ssl_cipher'"), PATIENCE)
            assert connection.facts is not None
            assert (connection.facts.listener_pid is None) is (login.host is not None)
        return str(rows[0][1]) if rows else ""

    def counted(self, variable: str) -> int:
        self.server.wait_until_alone()
        return self.server.status(variable)


def tcp(port: int) -> tuple[str, ...]:
    return ("--skip-networking=OFF", "--bind-address=127.0.0.1", f"--port={port}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mariadb_tls(require: Callable[..., None], made: Certificates) -> Iterator[Reached]:
    """Return MariaDB 10.11 with a certificate for 127.0.0.1 of a CA of ours."""
    require("mariadb")
    if why := plugins_missing("auth_ed25519"):
        pytest.skip(why)
    port = free_port()
    options = (*tcp(port), *plugins_options("auth_ed25519"), *made.options())
    with MariaDB(*options) as server:
        yield Reached(server, port)


@pytest.fixture(scope="module")
def mariadb118(require: Callable[..., None]) -> Iterator[Reached]:
    require("mariadb118")
    port = free_port()
    plugins = ("--plugin-load-add=auth_parsec", "--plugin-load-add=auth_ed25519")
    with MariaDB118(*tcp(port), *plugins) as server:
        yield Reached(server, port)


@pytest.fixture(scope="module")
def mysql97_tcp(require: Callable[..., None]) -> Iterator[Reached]:
    require("mysql97")
    port = free_port()
    with MySQL97(*tcp(port), "--plugin-load-add=auth_socket.so") as server:
        yield Reached(server, port)


@pytest.fixture(scope="module")
def mysql55_tcp(require: Callable[..., None]) -> Iterator[Reached]:
    """Return MySQL 5.5.9, whose build has no TLS."""
    require("mysql55")
    port = free_port()
    with MySQL55(*tcp(port)) as server:
        yield Reached(server, port)


def works_every_way(reached: Reached, user: str) -> None:
    assert reached.local(user) == ""
    for mode in MODES:
        assert bool(reached.remote(user, mode)) is (mode != "disabled"), mode
        # Some plugins do less for an account that they know already.
        assert bool(reached.remote(user, mode)) is (mode != "disabled"), mode


def is_refused(reached: Reached, user: str, said: str, password: str = "no") -> None:
    """Check the message, and that the server does not count it as a login that was given up."""
    for mode in ("disabled", "preferred"):
        with pytest.raises(RefusedError, match=said) as error:
            reached.remote(user, mode, password)
        assert "\n" not in str(error.value)
        assert type(error.value) is RefusedError


@pytest.mark.parametrize(
    ("user", "how"),
    [
        ("native", "IDENTIFIED VIA mysql_native_password USING PASSWORD('pw')"),
        ("ed", "IDENTIFIED VIA ed25519 USING PASSWORD('pw')"),
        (
            "several",
            "IDENTIFIED VIA unix_socket OR mysql_native_password USING PASSWORD('x')"
            " OR ed25519 USING PASSWORD('pw')",
        ),
    ],
)
def test_mariadb(mariadb_tls: Reached, user: str, how: str) -> None:
    mariadb_tls.create(user, how)
    works_every_way(mariadb_tls, user)
    is_refused(mariadb_tls, user, f"the server refuses '{user}' at .* Access denied")


@pytest.mark.parametrize(
    ("user", "how"),
    [
        ("parsec_", "IDENTIFIED VIA parsec USING PASSWORD('pw')"),
        ("ed", "IDENTIFIED VIA ed25519 USING PASSWORD('pw')"),
        (
            "several",
            "IDENTIFIED VIA ed25519 USING PASSWORD('x') OR parsec USING PASSWORD('pw')",
        ),
    ],
)
def test_mariadb118(mariadb118: Reached, user: str, how: str) -> None:
    mariadb118.create(user, how)
    works_every_way(mariadb118, user)
    is_refused(mariadb118, user, f"the server refuses '{user}' at .* Access denied")


@pytest.mark.parametrize("plugin", ["caching_sha2_password", "sha256_password"])
def test_mysql97(mysql97_tcp: Reached, plugin: str) -> None:
    user = plugin.removesuffix("_password")
    mysql97_tcp.create(user, f"IDENTIFIED WITH {plugin} BY 'pw'")
    works_every_way(mysql97_tcp, user)
    is_refused(mysql97_tcp, user, f"the server refuses '{user}' at .* Access denied")


def test_unix_users(mariadb118: Reached, mysql97_tcp: Reached) -> None:
    """The server asks the kernel who connects: nobody is asked for a password."""
    for reached, how in (
        (mariadb118, "IDENTIFIED VIA unix_socket AS"),
        (mysql97_tcp, "IDENTIFIED WITH auth_socket AS"),
    ):
        reached.server.execute(
            f"CREATE USER who@localhost {how} '{default_user()}'",
            f"CREATE USER other@localhost {how} 'nobody'",
        )
        assert reached.local("who", None) == ""
        with pytest.raises(RefusedError, match=r"refuses 'other' at .* Access denied"):
            reached.local("other", None)


def test_mysql55(mysql55_tcp: Reached) -> None:
    mysql55_tcp.create("native", "IDENTIFIED BY 'pw'")
    assert mysql55_tcp.local("native") == ""
    for mode in ("disabled", "preferred"):  # it prefers what the server has
        assert mysql55_tcp.remote("native", mode) == ""
    with pytest.raises(AbortedLoginError, match="SSL is required but the server"):
        mysql55_tcp.remote("native", "required")
    is_refused(mysql55_tcp, "native", r"the server refuses 'native' at .* Access denied")


def test_an_old_password_is_refused(mysql55_tcp: Reached) -> None:
    mysql55_tcp.create("old", "")
    password = "no-word-of-a-path"
    for host in HOSTS:
        mysql55_tcp.server.execute(f"SET PASSWORD FOR old@'{host}' = OLD_PASSWORD('{password}')")
    before = mysql55_tcp.counted("Aborted_clients")
    with pytest.raises(RefusedError, match=r"the format of before MySQL 4\.1") as error:
        mysql55_tcp.local("old", password)
    assert password not in str(error.value)
    assert mysql55_tcp.counted("Aborted_clients") == before


def test_a_missing_package_is_named(mariadb_tls: Reached, monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("nacl") is not None
    monkeypatch.setitem(sys.modules, "nacl", None)
    monkeypatch.setitem(sys.modules, "nacl.bindings", None)
    mariadb_tls.create("lacking", "IDENTIFIED VIA ed25519 USING PASSWORD('pw')")
    said = r"'lacking' at .* plugin ed25519 needs .* nacl, .*: pip install 'stallscope\[ed25519\]'"
    is_refused(mariadb_tls, "lacking", said, "pw")


def test_the_ca_and_the_name_are_checked(
    mariadb_tls: Reached, made: Certificates, tmp_path: Path
) -> None:
    mariadb_tls.create("checked", "IDENTIFIED BY 'pw' REQUIRE SSL")
    ca = str(made.ca)
    for mode in ("verify-ca", "verify-identity"):
        assert mariadb_tls.remote("checked", mode, tls=Tls(mode=mode, ca=ca))
    other = certificates(tmp_path)
    for mode in ("verify-ca", "verify-identity"):
        with pytest.raises(AbortedLoginError, match=r"no TLS with .* certificate verify failed"):
            mariadb_tls.remote("checked", mode, tls=Tls(mode=mode, ca=str(other.ca)))
    with pytest.raises(RefusedError, match="TLS files of the options cannot be used"):
        mariadb_tls.remote("checked", "", tls=Tls(mode="verify-ca", ca=str(tmp_path / "none.pem")))
    with pytest.raises(RefusedError, match="refuses 'checked'"):
        mariadb_tls.remote("checked", "disabled")


def test_another_name_is_refused(mysql97_tcp: Reached, made: Certificates) -> None:
    """The certificates that MySQL makes for itself are for no host."""
    mysql97_tcp.create("named", "IDENTIFIED BY 'pw'")
    ca = str(mysql97_tcp.server.data / "ca.pem")
    assert mysql97_tcp.remote("named", "", tls=Tls(mode="verify-ca", ca=ca))
    with pytest.raises(AbortedLoginError, match=r"ssl-mode=VERIFY_IDENTITY"):
        mysql97_tcp.remote("named", "", tls=Tls(mode="verify-identity", ca=ca))


def own_address() -> str:
    """Return an address of this host that servers count failures of: not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            end.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"this host has only its loopback address: {error}")
        return str(end.getsockname()[0])


def test_no_refused_login_blocks_the_host(require: Callable[..., None]) -> None:
    """A wrong password and an unusable plugin do not count for max_connect_errors; what does is
    known to the pauses."""
    require("mariadb")
    if why := plugins_missing("auth_pam"):
        pytest.skip(why)
    address, port = own_address(), free_port()
    options: tuple[str, ...] = ("--skip-networking=OFF", "--bind-address=0.0.0.0", f"--port={port}")
    options += ("--performance-schema=ON", "--max-connect-errors=4", *plugins_options("auth_pam"))
    with MariaDB(*options) as server:
        server.execute(
            "CREATE USER a@'%' IDENTIFIED BY 'pw'", "CREATE USER p@'%' IDENTIFIED VIA pam"
        )

        def attempt(user: str, password: str, tls: Tls) -> ConnectError:
            login = Login(user, password, host=address, port=port, tls=tls)
            with (
                closing(Connection(login)) as connection,
                pytest.raises(ConnectError) as failed,
            ):
                connection.open(PATIENCE)
            return failed.value

        def errors() -> int:
            """The server counts a login that was aborted when its thread reads that the client has
            gone: before that thread ends."""
            ended = "SELECT COUNT(*) = 0 FROM information_schema.processlist"
            ended += " WHERE id <> CONNECTION_ID() AND user <> 'system user'"
            wait_until(lambda: server.number(ended), "all logins have ended")
            asked = "SELECT SUM(SUM_CONNECT_ERRORS) FROM performance_schema.host_cache"
            return server.number(asked)

        for _ in range(6):
            assert type(attempt("a", "no", Tls())) is RefusedError
            assert type(attempt("p", "pw", Tls())) is RefusedError
        assert errors() == 0
        assert isinstance(attempt("a", "pw", Tls(mode="required")), AbortedLoginError)
        assert errors() == 1

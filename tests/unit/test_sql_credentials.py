# SPDX-License-Identifier: Apache-2.0
"""From options and the environment to where and as whom to log in."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.base.errors import UsageError
from stallscope.collectors.processes import ProcessInfo, Server
from stallscope.collectors.sql import credentials
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.optionfiles import Sources
from stallscope.main import main

pytestmark = pytest.mark.usefixtures("private_umask")

HERE = Server(
    main=ProcessInfo(
        pid=4711,
        ppid=1,
        comm="mysqld",
        state="S",
        start_time=1,
        kernel=False,
        exe="/usr/sbin/mysqld",
        program=None,
        argv=("mysqld",),
    ),
    pids=(4711,),
    sockets=("/run/mysqlx.sock", "/s.sock"),
    ports=(3310,),
)


def login(
    text: str,
    folder: Path,
    environment: dict[str, str] | None = None,
    server: Server | None = None,
    *,
    named: bool = True,
) -> Login:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    path = folder / "t.cnf" if named else home / ".my.cnf"
    path.write_text(text)
    sources = Sources(defaults_file=str(path)) if named else Sources()
    variables = {"HOME": str(home), "MYSQL_TEST_LOGIN_FILE": "/nonexistent", **(environment or {})}
    return credentials.find(sources, server, environment=variables, folders=())[0]


def test_a_whole_account(tmp_path: Path) -> None:
    found = login(
        "[client]\nuser=a\nhost=db1\nport=3307\npassword=x\n[stallscope]\nuser=m\npassword=p#\n"
        "connect_timeout=7\n",
        tmp_path,
    )
    assert (found.user, found.password, found.host, found.port) == ("m", "p", "db1", 3307)
    assert found.connect_seconds == 7
    assert found.socket is None
    assert found.where == "db1:3307"
    assert found.sources == (str(tmp_path / "t.cnf"),)


def test_password_is_nowhere_shown(tmp_path: Path) -> None:
    found = login("[client]\nuser=a\npassword=secret7\n", tmp_path)
    assert found.password == "secret7"
    for shown in (repr(found), str(found), f"{found!r:>10}", repr([found])):
        assert "secret7" not in shown


def test_environment_gives_way_to_files(tmp_path: Path) -> None:
    variables = {
        "MYSQL_PWD": "e",
        "MYSQL_HOST": "h",
        "MYSQL_TCP_PORT": "3333",
        "MYSQL_UNIX_PORT": "/e.sock",
    }
    found = login("[client]\nuser=a\n", tmp_path, variables)
    assert (found.password, found.host, found.port) == ("e", "h", 3333)
    found = login("[client]\npassword=f\nhost=localhost\n", tmp_path, variables)
    assert (found.password, found.host, found.socket) == ("f", None, "/e.sock")
    found = login("[client]\npassword=\n", tmp_path, variables)
    assert found.password == ""


def test_defaults_file_by_environment(tmp_path: Path) -> None:
    (tmp_path / "own.cnf").write_text("[client]\nuser=own\n")
    variables = {"STALLSCOPE_DEFAULTS_FILE": str(tmp_path / "own.cnf")}
    assert login("[client]\nuser=a\n", tmp_path, variables, named=False).user == "own"
    assert login("[client]\nuser=a\n", tmp_path, variables).user == "a"


def test_the_socket_is_that_of_the_process(tmp_path: Path) -> None:
    """Default files name the socket of one server of the machine; named ones mean it."""
    found = login("[client]\nsocket=/run/other.sock\n", tmp_path, server=HERE, named=False)
    assert (found.socket, found.socket_shown) == ("/proc/4711/root/s.sock", "/s.sock")
    assert found.where == "/s.sock"
    assert login("[client]\nsocket=/x.sock\n", tmp_path, server=HERE).socket == "/x.sock"
    assert login("[client]\nuser=x\n", tmp_path, server=HERE).socket == "/proc/4711/root/s.sock"
    found = login("[client]\nhost=db2\n", tmp_path, server=HERE, named=False)
    assert (found.socket, found.host) == (None, "db2")


def test_no_default_password_for_another_root(tmp_path: Path) -> None:
    """What calls itself mysqld in a container gets what was meant for it, and nothing else."""
    text = "[client]\nuser=root\npassword=secret7\n"
    assert login(text, tmp_path, server=HERE, named=False).password is None
    assert login(text, tmp_path, {"MYSQL_PWD": "e"}, server=HERE, named=False).password is None
    assert login(text, tmp_path, server=HERE).password == "secret7"
    assert login(text, tmp_path, named=False).password == "secret7"


def test_without_socket_the_port_of_the_process(tmp_path: Path) -> None:
    server = Server(main=HERE.main, pids=HERE.pids, ports=(3310,))
    found = login("[client]\nuser=a\n", tmp_path, server=server)
    assert (found.socket, found.host, found.port) == (None, "127.0.0.1", 3310)


@pytest.mark.parametrize(
    ("text", "socket", "host"),
    [
        ("host=localhost\nsocket=/s", "/s", None),
        ("host=127.0.0.1\nsocket=/s", None, "127.0.0.1"),
        ("host=db\nprotocol=socket\nsocket=/s", "/s", None),
        ("protocol=TCP\nsocket=/s", None, "localhost"),
        ("loose-host=db\nloose_port=3", None, "db"),
    ],
)
def test_where(text: str, socket: str | None, host: str | None, tmp_path: Path) -> None:
    found = login(f"[client]\n{text}\n", tmp_path)
    assert (found.socket, found.host) == (socket, host)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", "preferred"),
        ("skip-ssl", "disabled"),
        ("ssl=0", "disabled"),
        ("disable-ssl", "disabled"),
        ("ssl", "required"),
        ("enable-ssl", "required"),
        ("ssl-ca=/ca.pem", "verify-ca"),
        ("ssl_ca=/ca.pem\nssl-verify-server-cert", "verify-identity"),
        ("ssl-cert=/c\nssl-key=/k", "required"),
        ("ssl-mode=VERIFY_IDENTITY\nssl-ca=/ca.pem", "verify-identity"),
        ("ssl-mode=disabled\nssl-ca=/ca.pem", "disabled"),
        ("ssl-verify-server-cert=ON", "verify-identity"),
        ("skip-ssl\nssl", "required"),
    ],
)
def test_tls(text: str, mode: str, tmp_path: Path) -> None:
    assert login(f"[client]\nhost=db\n{text}\n", tmp_path).tls.mode == mode


@pytest.mark.parametrize(
    "text", ["port=x", "port=99999", "ssl-mode=maybe", "protocol=pipe", "connect-timeout=-1"]
)
def test_wrong_values_are_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of the options") as error:
        login(f"[client]\n{text}\n", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("command", ["snap", "watch", "cron"])
def test_no_sql_and_credentials_contradict(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [command, "-p", "no-such-server", "--no-sql", "--defaults-file", "/nonexistent"]
    assert main(given) == 2
    assert "--no-sql and option files contradict each other" in capsys.readouterr().err


def test_a_deadline_of_nothing_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snap", "-p", "x", "--sql-deadline", "0"]) == 2
    assert "is not a time in seconds" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""``stallscope snap`` asks the server whose threads it took, and does without where it cannot."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.login import Login
from tests.live.shots import LONGEST_SQL, run, take
from tests.live.test_sql_connection import seconds_in, stopped
from tests.support.servers import MariaDB, MySQL55, SqlServer
from tests.support.stalls import row_lock_convoy

pytestmark = [pytest.mark.needs("bpf", "root"), pytest.mark.usefixtures("private_umask")]


def connections(shot_threads: object) -> list[int]:
    assert isinstance(shot_threads, tuple)
    return [thread.connection for thread in shot_threads if thread.connection is not None]


def test_no_sql(mariadb: MariaDB, tmp_path: Path) -> None:
    before = mariadb.status("Connections")
    with row_lock_convoy(mariadb, 5):
        made = mariadb.status("Connections") - before
        shot = take(tmp_path, "-p", mariadb.pid, "--no-sql")
        assert mariadb.status("Connections") - before == made
    # Where another test has calibrated this build, they are read from memory.
    known = [thread for thread in shot.capture.threads if thread.connection is not None]
    assert {thread.source for thread in known} <= {"memory"}
    assert shot.code == 0


@pytest.mark.parametrize("name", ["mariadb", "mysql55"])
def test_a_refused_password_is_a_line(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(name)
    assert isinstance(server, (MariaDB, MySQL55))
    options = tmp_path / "my.cnf"
    options.write_text(f"[client]\nuser=nobody_\npassword=secret7\nsocket={server.socket}\n")
    patient = ("--sql-deadline", LONGEST_SQL)
    done = run("snap", "-p", server.pid, "--defaults-file", options, *patient)
    assert done.returncode == 0, done.stderr
    assert "refuses 'nobody_'" in " ".join(done.stdout.split())
    assert "secret7" not in done.stdout + done.stderr


def test_wrong_option_file_that_was_named(mariadb: SqlServer, tmp_path: Path) -> None:
    done = run("snap", "-p", mariadb.pid, "--defaults-file", tmp_path / "none.cnf")
    assert done.returncode == 2
    assert "cannot read the option file" in done.stderr
    done = run("snap", "-p", mariadb.pid, "--no-sql", "--defaults-file", tmp_path / "none.cnf")
    assert done.returncode == 2
    assert "contradict" in done.stderr


def test_a_server_that_hangs_is_captured_all_the_same(
    require: object, mariadb: MariaDB, tmp_path: Path
) -> None:
    with stopped(mariadb):
        shot = take(tmp_path, "-p", mariadb.pid, "--sql-deadline", "0.2")
    assert [note.code for note in shot.capture.notes] == ["sessions"]
    reported = seconds_in(shot.capture.notes[0].message, "connecting has taken")
    assert 0.2 <= reported < Login(user="").connect_seconds, "it waited for longer than was allowed"
    assert len(shot.capture.threads) > 5


@pytest.mark.parametrize("name", ["mariadb", "mysql97"])
def test_stallscope_is_in_no_output_of_its_own(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Nor is another program of it, where the server keeps what a connection says of itself."""
    server = request.getfixturevalue(name)
    assert isinstance(server, SqlServer)
    before = server.connection_ids()
    with closing(Connection(Login(user="root", password=None, socket=str(server.socket)))) as other:
        other.open(LONGEST_SQL)
        shot = take(tmp_path, "-p", server.pid, "--sql-deadline", LONGEST_SQL)
    own = {thread.tid for thread in shot.capture.threads if thread.own}
    assert len(own) == (2 if name == "mysql97" else 1)
    assert shot.analysis["threads"]["total"] == len(shot.capture.threads) - len(own)
    known = set(connections(shot.capture.threads))
    assert len(known - before) >= len(own)
    shown = json.dumps(shot.analysis)
    assert "session_connect_attrs" not in shown
    assert not any(f'"tid": {tid},' in shown for tid in own)

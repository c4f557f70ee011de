# SPDX-License-Identifier: Apache-2.0
"""``stallscope storage writes`` on real servers under load: its classes have what the kernel
counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stallscope.model import storagewrites
from stallscope.model.storagewrites import ClassWrites, WritesReport
from tests.bench.storage_writes import updates
from tests.support.servers import MEMORY, MariaDB, MySQL97, Postgres, SqlServer
from tests.support.targets import trouble

pytestmark = pytest.mark.needs("root", "bpf")

CLOSE = 0.03
DISK = Path("/var/tmp")
SECONDS = "4"
ROWS = 4000
CLIENTS = 2


def command(server: SqlServer | Postgres, *options: str) -> list[str]:
    argv = [sys.executable, "-P", "-m", "stallscope", "storage", "writes", "-p", str(server.pid)]
    return [*argv, "--seconds", SECONDS, "--sql-deadline", "60", *options]


def run(server: SqlServer | Postgres, *options: str, code: int = 0) -> str:
    done = subprocess.run(
        command(server, *options), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def report_of(server: SqlServer | Postgres, *options: str) -> WritesReport:
    found = storagewrites.loads(run(server, "--json", *options).encode(), "it")
    assert found.lost == {}
    return found


def by_class(report: WritesReport) -> dict[str, ClassWrites]:
    return {item.file_class: item for item in report.classes}


def assert_close(report: WritesReport) -> None:
    assert report.bytes
    assert report.process_write_bytes
    assert abs(report.bytes / report.process_write_bytes - 1) <= CLOSE, report


@contextmanager
def unharmed(server: SqlServer) -> Iterator[None]:
    """The server runs, answers, and no connection was lost."""
    aborted = "SHOW GLOBAL STATUS LIKE 'Aborted_clients'"
    before = server.query(aborted)
    yield
    assert trouble(server.pid) == []
    assert server.answers()
    assert server.query(aborted) == before


@pytest.fixture(params=["mariadb", "mysql97"])
def logged(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[SqlServer]:
    require(request.param)
    kind = {"mariadb": MariaDB, "mysql97": MySQL97}[request.param]
    options = ("--log-bin=binlog", "--server-id=1", "--innodb-flush-method=fsync")
    with kind(*options, parent=DISK) as server:
        yield server


def test_classes_are_what_the_kernel_counts(logged: SqlServer, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    with updates(logged, ROWS, CLIENTS), unharmed(logged):
        text = run(logged, "-o", str(saved))
        again = report_of(logged)
    assert saved.stat().st_mode & 0o777 == 0o600
    report = storagewrites.loads(saved.read_bytes(), "it")
    for one in (report, again):
        assert_close(one)
        assert one.commits_exact
        assert one.commits
        # Each transaction of this test changes one row; there may be one of another here.
        assert abs((one.rows or 0) / one.commits - 1) < 0.2
        found = by_class(one)
        assert (found["binlog"].bytes or 0) > 0
        assert found["binlog"].requested_bytes >= one.commits * 100
        assert (found["redo"].bytes or 0) > 0
        assert sum(sum(point.bytes.values()) for point in one.series) == one.bytes
        assert [device.name for device in one.devices if device.name]
    assert "Compared with" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    changed = subprocess.run(
        [sys.executable, "-P", "-m", "stallscope", "diff", "--json", str(saved), str(saved)],
        capture_output=True,
        check=True,
    )
    assert json.loads(changed.stdout)["changes"][0]["factor_per_commit"] == 1


def test_postgres(require: Callable[..., None]) -> None:
    require("postgres")
    with Postgres("fsync=on", "shared_buffers=16MB", parent=DISK) as server:
        with updates(server, ROWS, CLIENTS):
            report = report_of(server)
        assert trouble(server.pid) == []
        assert server.answers()
    assert_close(report)
    assert report.processes > CLIENTS
    assert report.commits_exact
    assert report.commits
    assert (by_class(report)["redo"].bytes or 0) > 0


@pytest.fixture
def in_memory(require: Callable[..., None]) -> Iterator[SqlServer]:
    require("mariadb")
    with MariaDB(parent=MEMORY) as server:
        yield server


def test_without_sql_and_in_memory(in_memory: SqlServer) -> None:
    """Nothing is charged for tmpfs: the requested bytes are there, and a device is not."""
    with updates(in_memory, ROWS, CLIENTS), unharmed(in_memory):
        report = report_of(in_memory, "--no-sql")
    assert report.commits is None
    assert report.rows is None
    assert "commits and rows are not known: --no-sql" in report.notes
    assert report.requested_bytes > 0
    assert not report.process_write_bytes
    assert all(device.bytes is None for device in report.devices)


def test_an_idle_server(in_memory: SqlServer) -> None:
    with unharmed(in_memory):
        report = report_of(in_memory)
    assert report.process_write_bytes == 0
    assert report.rows == 0
    assert report.commits == 0


def test_wrong_use(in_memory: SqlServer, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("")
    cases: tuple[tuple[tuple[str, ...], int, str], ...] = (
        (("-o", str(there)), 1, "--force"),
        (("--report", str(there)), 1, "--force"),
        (("-o", "/nonexistent/x"), 1, "no directory"),
        (("-o", str(tmp_path / "x"), "--report", str(tmp_path / "x")), 2, "the same file"),
        (("--seconds", "0"), 2, "--seconds"),
        (("--no-sql", "--defaults-file", "/dev/null"), 2, "contradict"),
    )
    for options, code, said in cases:
        done: subprocess.CompletedProcess[Any] = subprocess.run(
            command(in_memory, *options), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code, done
        assert said in done.stderr
        assert "Traceback" not in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""``stallscope status`` on real servers: known work shows as it was done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stallscope.analyzers import workload
from stallscope.analyzers.workload import Row, Verdict
from stallscope.base.errors import Exit
from stallscope.collectors import processes
from stallscope.collectors.processes import Selector
from stallscope.collectors.sql import credentials
from stallscope.collectors.sql import workload as source
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.optionfiles import Sources
from stallscope.commands import status
from stallscope.main import main
from stallscope.server.status import ABSENT, Progress, StatusSample
from tests.support.servers import PATIENCE, MariaDB, MySQL55, MySQL97, SqlServer, wait_until

ALTERS = 20
"""Times at most that a table is changed, until one is seen at it."""


@contextmanager
def asking(server: SqlServer) -> Iterator[Callable[[], StatusSample]]:
    """Yield a function that takes one sample; no other client is connected but the test itself."""
    found = processes.find_server(str(server.pid), Selector())
    connection = Connection(credentials.find(Sources(no_defaults=True), found)[0])
    try:
        server.wait_until_alone(connection.open(PATIENCE).connection)
        yield lambda: connection.ask(source.sample, PATIENCE)
    finally:
        connection.close()


def _rows(report: workload.Report) -> dict[str, Row]:
    return {row.id: row for row in report.rows}


def _grown(row: Row, report: workload.Report) -> int:
    """Return by how much a counter grew; the way by its rate rounds it."""
    assert row.rate is not None
    grown = row.rate * report.seconds
    assert grown == pytest.approx(round(grown))
    return round(grown)


def _check(server: SqlServer, statements: int = 200) -> dict[str, Row]:
    """Run known statements between two samples; return the rows."""
    server.execute(
        "CREATE DATABASE IF NOT EXISTS status_",
        "CREATE TABLE IF NOT EXISTS status_.t (a INT PRIMARY KEY) ENGINE=InnoDB",
        "REPLACE INTO status_.t VALUES (1), (2), (3)",
    )
    with asking(server) as sample:
        first = sample()
        for _ in range(statements):
            server.query("SELECT * FROM status_.t")
        second = sample()
    own = len((source.STATUS, source.VARIABLES, source.INNODB, source.METRICS, source.CONSUMER))
    own += 1  # of compression
    report = workload.report(first, second)
    rows = _rows(report)
    assert _grown(rows["questions"], report) == statements + own
    assert _grown(rows["rows-read"], report) >= 3 * statements
    assert rows["threads-running"].verdict is Verdict.OK
    assert rows["checkpoint-age"].value is not None
    assert rows["history"].value is not None
    return rows


def test_mariadb(mariadb: MariaDB) -> None:
    rows = _check(mariadb)
    assert rows["aria-log-syncs"].value is not None
    assert rows["defragmentation"].value is not None
    assert rows["deadlocks"].value == 0


def test_mysql55(mysql55: MySQL55) -> None:
    rows = _check(mysql55)
    for name in ("aria-log-syncs", "icp", "ddl-progress", "deadlocks"):
        assert (rows[name].verdict, rows[name].value) == (Verdict.UNKNOWN, None)
        assert rows[name].note == ABSENT


def test_mysql97(mysql97: MySQL97) -> None:
    rows = _check(mysql97)
    assert rows["deadlocks"].value == 0
    assert "innodb_monitor_enable" in (rows["icp"].note or "")
    assert rows["aria-misses"].note == ABSENT


@pytest.mark.parametrize("kind", [MariaDB, MySQL55])
def test_restart(kind: type[SqlServer], require: Callable[..., None]) -> None:
    require(kind.name)
    with kind() as server:
        first, second = restarted(server, 2)
        while second.values["Uptime"] >= first.values["Uptime"]:  # it is slow to start
            first, second = restarted(server, 4 * int(second.values["Uptime"]))
    report = workload.report(first, second)
    assert report.restarted
    assert report.seconds == second.values["Uptime"] < first.values["Uptime"]


def restarted(server: SqlServer, uptime: int) -> tuple[StatusSample, StatusSample]:
    """StatusSample, once it has been up so long, at the one that is shut down, and at the next
    one."""
    wait_until(lambda: server.status("Uptime") >= uptime, f"{uptime} seconds of uptime")
    with asking(server) as sample:
        first = sample()
    server.shut_down()
    server.start()
    with asking(server) as sample:
        return first, sample()


def test_progress_of_an_alter(mariadb: MariaDB) -> None:
    mariadb.execute("CREATE DATABASE IF NOT EXISTS status_")
    mariadb.execute(
        "CREATE TABLE large ENGINE=InnoDB SELECT seq, REPEAT('x', 200) filling"
        " FROM seq_1_to_200000",
        database="status_",
    )
    change = "ALTER TABLE status_.large COMMENT 'SECRET', FORCE, ALGORITHM=COPY"

    def alter() -> None:
        connection = mariadb.connect()
        with connection.cursor() as cursor:
            cursor.execute(change)
        connection.close()

    seen: list[Progress] = []
    with asking(mariadb) as sample:
        for _ in range(ALTERS):
            thread = threading.Thread(target=alter)
            thread.start()
            while not seen and thread.is_alive():
                seen.extend(sample().progress)
            thread.join()
            if seen:
                break
    assert seen, f"{ALTERS} times it was not seen while it went on"
    assert seen[0].percent is not None
    assert 0 < seen[0].percent <= 100
    assert seen[0].query == "ALTER TABLE status_.large COMMENT ?, FORCE, ALGORITHM = COPY"


def test_command(
    mariadb: MariaDB, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_DEADLINE", PATIENCE)
    assert main(["status", "-p", str(mariadb.pid), "--seconds", "0.2", "--json"]) == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == mariadb.version()
    assert 0.2 <= document["seconds"] < PATIENCE
    assert main(["status", "-p", str(mariadb.pid), "--seconds", "0.2", "--full"]) == Exit.DONE
    assert mariadb.version() in capsys.readouterr().out

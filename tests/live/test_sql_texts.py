# SPDX-License-Identifier: Apache-2.0
"""Texts that real servers give during a stall: what happens is in them, and no data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from stallscope.collectors.sql import texts
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.login import Login
from tests.support.servers import PATIENCE, MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.stalls import row_lock_convoy

__all__: list[str] = []


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MariaDB, marks=pytest.mark.needs("mariadb")),
        pytest.param(MySQL55, marks=pytest.mark.needs("mysql55")),
        pytest.param(MySQL97, marks=pytest.mark.needs("mysql97")),
    ],
)
def test_texts_of_a_convoy(kind: Callable[[], SqlServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "DEADLINES", dict.fromkeys(texts.DEADLINES, PATIENCE))
    monkeypatch.setattr(texts, "MODE_SECONDS", PATIENCE)
    with kind() as server, row_lock_convoy(server, 12):
        login = Login(user="root", socket=str(server.socket))
        with closing(Connection(login)) as connection:
            connection.open(PATIENCE)
            reported = texts.fetch_texts(connection)
    assert reported.missing == ()
    assert "12 wait for its row lock" in reported.found["lock-waits"]
    report = reported.found["innodb-status"]
    for text in (reported.found["processlist"], report):
        assert "UPDATE t1 SET b = b + ? WHERE a = ?" in text
    assert "hex " not in report
    # Where the server prints no rows, nothing else may be unknown.
    lost = [line for line in report.splitlines() if line.startswith("<left out")]
    assert 0 < len(lost) <= 13, report

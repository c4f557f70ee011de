# SPDX-License-Identifier: Apache-2.0
"""Texts of the server that hold no data, and collectors that are asked rarely."""

from __future__ import annotations

import contextlib
from collections import Counter
from types import SimpleNamespace

import pytest

from stallscope.agent import sources
from stallscope.collectors.sql import collecting
from stallscope.collectors.sql.collecting import Infrequent, SqlCollector
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import LateError, SqlError, StatementError
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.sessiontexts import MAX_KINDS, lock_waits_text, processlist_text
from stallscope.collectors.triggers.engine import sources_named
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait, Session, Sessions
from stallscope.server.statements import normalize, normalizer

__all__: list[str] = []


def test_connections_that_do_the_same_are_one_line() -> None:
    counts = Counter(
        {("Query", "updating", f"UPDATE t SET a = 'SECRET' WHERE b = {n}"): 2 for n in range(50)}
    )
    counts["Sleep", "", ""] = 900
    text = processlist_text(counts, dict.fromkeys(counts, 7), normalize)
    assert text.splitlines()[1:] == [
        "        100          7  Query    updating: UPDATE t SET a = ? WHERE b = ?",
        "        900          7  Sleep    -: -",
    ]


def test_a_storm_of_statements_is_cut_and_counted() -> None:
    counts = Counter({("Query", "", f"SELECT a{n}"): 1 for n in range(MAX_KINDS * 20)})
    lines = processlist_text(counts, {}, normalize).splitlines()
    assert len(lines) == MAX_KINDS + 2
    assert lines[-1] == f"{MAX_KINDS * 19:11}  others"


def test_who_holds_what_and_how_many_wait() -> None:
    owner = Session(
        8, user="app", command="Sleep", seconds=65.0, statement="UPDATE t SET a = 'SECRET'"
    )
    waits = [LockWait(LockKind.ROW, n, 8, "index PRIMARY of rows_.t1", "X") for n in range(20, 32)]
    waits.append(LockWait(LockKind.METADATA, 40, 9, "shop.orders"))
    text = lock_waits_text(Sessions((owner,), tuple(waits), notes=("one note",)), normalize)
    assert text.splitlines() == [
        "13 connections wait for locks of 2 others",
        "connection 8 of app, Sleep for 65 s: UPDATE t SET a = ?",
        "  12 wait for its row lock (X) of index PRIMARY of rows_.t1",
        "connection 9",
        "  1 wait for its metadata lock of shop.orders",
        "one note",
    ]


def test_quotes_are_read_as_the_server_reads_them() -> None:
    sql = 'SELECT a FROM "t"'
    assert normalizer("")(sql).text == "SELECT a FROM ?"
    assert normalizer("REAL_AS_FLOAT,ANSI_QUOTES")(sql).text == sql


class Scripted(SqlCollector):
    name = "scripted"
    error: SqlError | None = None

    def read(self, session: SqlSession) -> dict[str, float]:
        raise NotImplementedError

    def collect(self):  # type: ignore[no-untyped-def]
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "seconds", "interval"),
    [
        (None, 0.0, 5.0),
        (None, 2.5, 250.0),
        (StatementError("no such table", 1146), 0.0, collecting.RETRY_SECONDS),
        (LateError("no answer since 1.0 s"), 0.0, 1.0 / collecting.SHARE),
        (LateError("no answer since 1.0 s"), 2.5, 250.0),
    ],
)
def test_what_is_expensive_or_missing_is_queried_rarely(
    error: SqlError | None, seconds: float, interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 10.0 + seconds])
    # Threads of other tests may still ask for the time.
    monkeypatch.setattr(collecting, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    scripted = Scripted(Connection(Login(user="nobody")))
    scripted.error = error
    infrequent = Infrequent(scripted, 5.0)
    assert infrequent.interval == 5.0
    with contextlib.nullcontext() if error is None else pytest.raises(type(error)):
        infrequent.collect()
    assert infrequent.interval == pytest.approx(interval)


def test_a_trigger_sets_the_interval_of_its_collector() -> None:
    settings = AgentSettings(
        triggers=(
            TriggerSettings("a", variable="lock_waits.waiting", threshold=1, interval=2.0),
            TriggerSettings(
                "b", variable="lock_waits.blockers + innodb.queries_queued", threshold=1
            ),
            TriggerSettings("c", variable="Threads_running", threshold=1),
        )
    )
    assert sources_named(settings) == {"lock_waits": 1.0, "innodb": 1.0}
    connection = Connection(Login(user="nobody"))
    found = {one.name: one.interval for one in sources._infrequent(connection, settings)}
    assert found == {
        "lock_waits": 1.0,
        "metadata_locks": 5.0,
        "replication": 5.0,
        "group": 5.0,
        "settings": 5.0,
        "compression": 30.0,
        "innodb_status": 1.0,
    }

# SPDX-License-Identifier: Apache-2.0
"""The tables of a fleet in ClickHouse: made, made again, altered by hand, of a later version."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stallscope.base.sending import SendError
from stallscope.fleet import tables
from stallscope.fleet.address import Address
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines.clickhouseddl import plain_type
from stallscope.fleet.engines.clickhousetables import drop_old, init
from stallscope.fleet.tables import (
    PARTS,
    TABLES,
    WAITS,
    AgentRow,
    Column,
    IncidentRow,
    StackRow,
    WaitRow,
)
from tests.live.fleet.places import Place
from tests.support.fleet.cluster import CLUSTER, Cluster
from tests.support.fleet.examples import NOON, example
from tests.support.servers import MEMORY

__all__: list[str] = []

DAY_MS = 86_400_000


def test_tables_are_made_once(place: Place) -> None:
    first = place.init()
    made = " ".join(first.done)
    for name in (*TABLES, *PARTS, "agents_buffer"):
        assert f" {name}" in made
    assert first.done[-1] == "version 1 of the tables"
    assert place.rows("SELECT version FROM fleet_schema") == [{"version": tables.VERSION}]
    again = place.init()
    assert again.done == ()
    assert again.wrong == ()
    assert place.engine.notes == ()


def test_tables_that_are_there_keep_their_rows(place: Place) -> None:
    place.init()
    place.send(example(IncidentRow, uid="a"))
    place.init()
    place.becomes("SELECT uid FROM incidents FINAL", [{"uid": "a"}])


def test_a_condition_sees_the_latest_revision_only(place: Place) -> None:
    place.init()
    for rev, signature in ((1, "old"), (2, "new")):
        place.send(example(IncidentRow, uid="a", rev=rev, signature=signature))
    place.send(example(IncidentRow, uid="a", rev=1, signature="old"))
    question = "SELECT uid FROM incidents FINAL WHERE signature = '{}'"
    place.becomes(question.format("new"), [{"uid": "a"}])
    place.becomes(question.format("old"), [])
    assert place.rows("SELECT DISTINCT uid FROM captures WHERE signature = 'nothing'") == []


def test_views_show_the_parts(place: Place) -> None:
    place.init()
    place.send(example(IncidentRow, "text", uid="a"))
    for name, part in PARTS.items():
        place.becomes(f"SELECT count() AS n FROM {name}", [{"n": 2}])
        (found,) = place.rows(f"SELECT * FROM {name} LIMIT 1")
        assert found.keys() == {"uid", "host", "start_ms", "day", *(c.name for c in part.columns)}
        texts = [column.name for column in part.columns if column.type == "text"]
        assert {found[one] for one in texts} <= {"text"}


def test_heartbeats_arrive_in_the_table_behind_the_buffer(place: Place) -> None:
    place.init()
    place.send(example(AgentRow, host="a", rev=1, waiting=5), example(AgentRow, host="b", rev=1))
    place.send(example(AgentRow, host="a", rev=2, waiting=9))
    place.statement(f"OPTIMIZE TABLE {place.database}.agents_buffer")
    place.becomes(
        f"SELECT host, waiting FROM {place.table('agents', 'host', 'waiting')} ORDER BY host",
        [{"host": "a", "waiting": 9}, {"host": "b", "waiting": 7}],
    )


def test_old_days_are_dropped_everywhere(place: Place) -> None:
    place.init()
    rows = [
        kind
        for age in (0, 5, 20)
        for host in "abcdefgh"
        for kind in (
            example(IncidentRow, uid=host + str(age), host=host, start_ms=NOON - age * DAY_MS),
            example(WaitRow, host=host, minute_ms=NOON - age * DAY_MS),
        )
    ]
    old_stack = example(StackRow, hash="old", day=tables.day_of(NOON - 20 * DAY_MS))
    place.send(*rows, old_stack, example(StackRow, hash="new"))
    place.becomes("SELECT count() AS n FROM incidents", [{"n": 24}])
    days = dict.fromkeys(TABLES, 10)
    gone = drop_old([place.address], days, now_ms=NOON)
    assert gone == {"incidents": 8, "stacks": 1, "waits": 8, "agents": 0}
    place.becomes("SELECT count() AS n FROM incidents", [{"n": 16}])
    place.becomes("SELECT count() AS n FROM waits", [{"n": 16}])
    place.becomes("SELECT hash FROM stacks", [{"hash": "new"}])
    assert not any(drop_old([place.address], days, now_ms=NOON).values())


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a later version, whose table ``waits`` has two more columns."""
    columns = list(WAITS.columns)
    columns.insert(3, Column("zone", "text"))
    columns.append(Column("slow", "float", nullable=True))
    table = msgspec.structs.replace(WAITS, columns=tuple(columns))
    monkeypatch.setitem(tables.TABLES, "waits", table)
    monkeypatch.setattr(tables, "VERSION", 2)


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Be an earlier version, whose table ``agents`` and part ``captures`` lack a column."""
    for name, column in (("agents", "skew_ms"), ("incidents", "captures_partial")):
        table = TABLES[name]
        kept = tuple(one for one in table.columns if one.name != column)
        changed = msgspec.structs.replace(table, columns=kept)
        monkeypatch.setitem(tables.TABLES, name, changed)
    part = PARTS["captures"]
    kept = tuple(one for one in part.columns if one.name != "partial")
    monkeypatch.setitem(tables.PARTS, "captures", msgspec.structs.replace(part, columns=kept))
    monkeypatch.setattr(tables, "VERSION", 0)
    return monkeypatch


def test_a_later_version_adds_its_columns(place: Place, request: pytest.FixtureRequest) -> None:
    place.init()
    place.send(example(WaitRow, host="a"))
    place.becomes("SELECT host FROM waits", [{"host": "a"}])
    request.getfixturevalue("later")
    done = " ".join(place.init().done)
    assert f"added to table {place.local('waits')}: zone, slow" in done
    assert "version 2, from 1" in done
    assert place.init().done == ()
    # An older agent goes on writing without them.
    place.send(example(WaitRow, host="b"))
    place.becomes(
        "SELECT host, zone, slow FROM waits ORDER BY host",
        [{"host": host, "zone": "", "slow": None} for host in "ab"],
    )


def test_an_older_version_says_that_tables_are_newer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.init()
    monkeypatch.setattr(tables, "VERSION", 0)
    with pytest.raises(EngineError, match="of version 1, and this stallscope knows 0: install"):
        place.init()
    assert place.engine.notes == (
        "the tables are of version 1, and this stallscope knows 0: install a later one",
    )


def test_a_newer_agent_says_what_older_tables_leave_out(
    place: Place, earlier: pytest.MonkeyPatch
) -> None:
    place.init()
    earlier.undo()
    place.send(example(IncidentRow, uid="a"), example(AgentRow, host="a"))
    place.becomes("SELECT uid FROM incidents FINAL", [{"uid": "a"}])
    noted = sorted(note.split(":")[0].split(" of ")[0] for note in place.destination.notes)
    assert noted == ["table agents", "table incidents"]
    assert "lacks captures_partial" in " ".join(place.destination.notes)
    # Buffer, Distributed and views get the columns too.
    assert "added to table" in " ".join(place.init().done)
    place.send(example(IncidentRow, uid="b"), example(AgentRow, host="b"))
    # Rows without the column have as many values as they have captures.
    place.becomes(
        "SELECT uid, sum(partial) AS n, count() AS m FROM captures GROUP BY uid ORDER BY uid",
        [{"uid": "a", "n": 0, "m": 2}, {"uid": "b", "n": 2, "m": 2}],
    )
    place.statement(f"OPTIMIZE TABLE {place.database}.agents_buffer")
    place.becomes("SELECT skew_ms FROM agents FINAL WHERE host = 'b'", [{"skew_ms": 0.25}])


def test_a_column_that_somebody_dropped_comes_back(place: Place) -> None:
    place.init()
    place.alter(place.local("incidents"), "DROP COLUMN title")
    place.again("incidents", "title")
    (note,) = place.engine.notes
    assert note.startswith("table incidents lacks title: run stallscope fleet init")
    place.send(example(IncidentRow, uid="a"))
    assert "lacks title: not stored" in place.destination.notes[0]
    with pytest.raises(EngineError, match="lacks title"):
        place.rows("SELECT title FROM incidents FINAL")
    assert "title (somebody dropped them)" in " ".join(place.init().done)
    place.send(example(IncidentRow, uid="b", title="T"))
    place.becomes("SELECT title FROM incidents FINAL WHERE uid = 'b'", [{"title": "T"}])


def test_a_type_that_somebody_changed_is_named_with_its_repair(place: Place) -> None:
    place.init()
    place.alter(place.local("incidents"), "MODIFY COLUMN blocker Int64")
    place.again("incidents", "blocker", "Int64")
    with pytest.raises(SendError, match=r"column blocker is Int64 instead of String") as caught:
        place.send(example(IncidentRow, "words"))
    assert not caught.value.refused
    wrong = place.init().wrong
    assert wrong
    for line in wrong:
        repair = line.partition("; to repair it: ")[2].removeprefix("on a node of each shard, ")
        if repair.startswith("ALTER"):
            place.on_each(repair)
        else:
            place.statement(repair.partition(", and run")[0])
    place.init()
    assert place.init().wrong == ()
    place.send(example(IncidentRow, "words", uid="a"))
    place.becomes("SELECT blocker FROM incidents FINAL", [{"blocker": "words"}])


def test_an_engine_that_somebody_changed_is_named_with_its_repair(place: Place) -> None:
    place.init()
    own = f"{place.database}.{place.local('waits')}"
    columns = ", ".join(f"{c.name} {plain_type(c)}" for c in WAITS.columns)
    place.statement(f"DROP TABLE {own}{place.on}")
    place.statement(f"CREATE TABLE {own}{place.on} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    (line,) = place.init().wrong
    assert line.startswith(f"table {place.local('waits')} was altered: its engine is MergeTree")
    assert line in place.engine.notes
    with pytest.raises(EngineError, match="its engine is MergeTree"):
        place.rows("SELECT host FROM waits FINAL")
    repairs = line.partition("; to repair it: ")[2].split(", ")
    place.statement(repairs[0])
    place.init()
    assert place.init().wrong == ()
    place.statement(repairs[2])
    assert place.rows("SELECT host FROM waits FINAL") == []


def test_a_cluster_without_ddl_takes_the_address_of_each_node(
    require: Callable[..., None],
) -> None:
    require("clickhouse-cluster")
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        Cluster(Path(folder), ddl=False) as cluster,
    ):
        every = Place(cluster.url, CLUSTER)
        one = msgspec.structs.replace(every.address, hosts=every.address.hosts[:1])
        with pytest.raises(EngineError, match="give the address of each node, 1 given"):
            init([one], CLUSTER)
        assert "made table incidents_local" in init([every.address], CLUSTER).done
        assert init([every.address], CLUSTER).done == ()
        rows = [example(IncidentRow, uid=host, host=host) for host in "abcdefgh"]
        every.send(*rows)
        every.becomes("SELECT count() AS n FROM incidents FINAL", [{"n": 8}])
        replicated = cluster.nodes[0].query(
            "SELECT count() FROM system.replicas WHERE database = 'stallscope'"
        )
        assert replicated == str(len(TABLES))
        assert drop_old([every.address], now_ms=NOON + 500 * DAY_MS)["incidents"] == 8
        for node in cluster.nodes:
            assert node.query("SELECT count() FROM stallscope.incidents") == "0"


def test_a_cluster_that_is_not_known_is_named(node: Place) -> None:
    with pytest.raises(EngineError, match="knows no cluster nowhere: define it"):
        init([node.address], "nowhere")


def test_tables_of_a_cluster_are_not_made_again_without_it(cluster: Cluster) -> None:
    place = Place(cluster.url.replace("/stallscope", "/once"), CLUSTER)
    place.init()
    try:
        with pytest.raises(EngineError, match="are of the cluster fleet: give --cluster fleet"):
            init([place.address])
    finally:
        place.statement(f"DROP DATABASE once ON CLUSTER {CLUSTER}")


def test_a_server_that_is_not_there_is_named() -> None:
    address = Address(scheme="http", hosts=("127.0.0.1:1",), database="x")
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        init([address])

# SPDX-License-Identifier: Apache-2.0
"""Batches to ClickHouse: whatever is in them, however often they are sent, and what is refused."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from stallscope.base.sending import SendError
from stallscope.fleet import batch
from stallscope.fleet.batch import Batch
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines.clickhouse import ClickHouseDestination
from stallscope.fleet.tables import (
    TABLES,
    AgentRow,
    IncidentRow,
    Row,
    StackRow,
    WaitRow,
    day_of,
    encode,
)
from tests.live.fleet.places import Place
from tests.support import loopdisks
from tests.support.fleet.cluster import CLUSTER, Cluster
from tests.support.fleet.examples import NOON, example
from tests.support.servers import MEMORY
from tests.support.servers.waiting import wait_until

__all__: list[str] = []

DAY_MS = 86_400_000
HOSTILE = (
    "'; DROP TABLE incidents; --",
    "\"\\\\' `\\n\\t\\N",
    "\0\x01\x1b[2J\x7f",
    "line\r\nof\u2028others\u202e\ufeff",
    "😀 ß 漢字 \ud7ff\U0010ffff",
    '{"a": [1, null]}\tx\n{"b"',
    "NULL \\N nan %s {} {shard} ${x}",
    "x" * 100_000,
    " ",
    "",
)


def test_hostile_texts_come_back_equal(place: Place) -> None:
    place.init()
    kinds: dict[str, type[Row]] = {
        "incidents": IncidentRow,
        "stacks": StackRow,
        "waits": WaitRow,
        "agents": AgentRow,
    }
    sent = {name: [example(kind, text) for text in HOSTILE] for name, kind in kinds.items()}
    place.send(*(row for rows in sent.values() for row in rows))
    for name, rows in sent.items():
        columns = [column.name for column in TABLES[name].columns]
        wanted = sorted(str(msgspec.json.decode(encode(row))) for row in rows)
        question = f"SELECT * FROM {place.table(name, *columns)}"

        def there(question: str = question, wanted: list[str] = wanted) -> bool:
            return sorted(map(str, place.rows(question))) == wanted

        wait_until(there, f"{name} have come back")


def test_the_same_batch_five_times_is_there_once(place: Place) -> None:
    place.init()
    rows = [example(IncidentRow, uid=f"u{n}", host=f"h{n % 7}") for n in range(100)]
    for _ in range(5):
        place.send(*rows, example(StackRow), example(WaitRow))
    place.becomes(
        f"SELECT count() AS n, uniqExact(uid) AS m FROM {place.table('incidents', 'uid')}",
        [{"n": 100, "m": 100}],
    )
    place.becomes(f"SELECT count() AS n FROM {place.table('captures', 'uid')}", [{"n": 200}])


def test_a_batch_of_many_days_is_taken(place: Place) -> None:
    place.init()
    rows = [example(IncidentRow, uid=f"u{n}", start_ms=NOON - n * DAY_MS) for n in range(250)]
    place.send(*rows)
    place.becomes("SELECT count() AS n FROM incidents", [{"n": 250}])
    place.becomes("SELECT min(day) AS d FROM incidents", [{"d": day_of(NOON - 249 * DAY_MS)}])


def test_the_least_and_largest_numbers_come_back(place: Place) -> None:
    place.init()
    most = 2**63 - 1
    place.send(
        example(
            IncidentRow, rev=most, threads=-most - 1, confidence=1.7e308, seconds=None, end_ms=None
        )
    )
    place.becomes(
        "SELECT rev, threads, confidence, seconds, end_ms FROM incidents",
        [
            {
                "rev": most,
                "threads": -most - 1,
                "confidence": 1.7e308,
                "seconds": None,
                "end_ms": None,
            }
        ],
    )


def test_a_column_of_a_newer_agent_is_left_out(place: Place) -> None:
    place.init()
    line = encode(example(IncidentRow, uid="a"))[:-1] + b',"of_tomorrow":[{"x":"\\u0000"}]}'
    place.destination.send(Batch({"incidents": (line,)}))
    place.becomes("SELECT uid FROM incidents", [{"uid": "a"}])


def test_rows_that_no_table_takes_are_refused_for_good(place: Place) -> None:
    place.init()
    for damaged in (b'{"day":"2026-11-29","rev":"no number"}', b"{", b"\xff\xfe"):
        with pytest.raises(SendError) as caught:
            place.destination.send(Batch({"waits": (damaged,)}))
        assert caught.value.refused, str(caught.value)
    # It did not stop those that are whole.
    place.send(example(WaitRow, host="a"))
    place.becomes("SELECT host FROM waits", [{"host": "a"}])


def test_missing_tables_are_waited_for(place: Place) -> None:
    with pytest.raises(SendError, match="run stallscope fleet init") as caught:
        place.send(example(IncidentRow))
    assert not caught.value.refused
    with pytest.raises(EngineError, match="run stallscope fleet init"):
        place.rows("SELECT uid FROM incidents")
    place.init()
    place.send(example(IncidentRow, uid="a"))
    place.becomes("SELECT uid FROM incidents", [{"uid": "a"}])


def test_a_large_answer_is_refused(place: Place) -> None:
    place.init()
    large = "(SELECT toFixedString('x', 1000000) AS x FROM system.numbers LIMIT 12)"
    with pytest.raises(EngineError, match="larger than 64 MiB: ask for less"):
        place.rows(f"SELECT x FROM {large}")
    assert place.rows("SELECT 1 AS x") == [{"x": 1}]


def test_no_incident_is_lost_or_doubled_while_a_shard_is_killed(
    require: Callable[..., None],
) -> None:
    require("clickhouse-cluster")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, Cluster(Path(folder)) as cluster:
        place = Place(cluster.url, CLUSTER)
        place.init()
        count, started, killed = 60, threading.Event(), threading.Event()
        failed: list[SendError] = []

        def ship() -> None:
            destination = ClickHouseDestination(place.address)
            for number in range(count):
                rows = [example(IncidentRow, uid=f"u{number}-{n}", host=f"h{n}") for n in range(10)]

                def taken(rows: list[IncidentRow] = rows) -> bool:
                    try:
                        destination.send(batch.make(rows))
                    except SendError as error:
                        failed.append(error)
                        return False
                    return True

                if number == 10:
                    started.set()
                if number == 20:
                    assert killed.wait(60)
                wait_until(taken, "the batch is taken")

        thread = threading.Thread(target=ship)
        thread.start()
        assert started.wait(120)
        cluster.kill_shard(1)
        killed.set()
        wait_until(lambda: failed, "a batch is not taken")
        cluster.start_shard(1)
        thread.join()
        cluster.wait_writable()
        assert [str(error) for error in failed if error.refused] == []
        place.becomes(
            f"SELECT count() AS n, uniqExact(uid) AS m FROM {place.table('incidents', 'uid')}",
            [{"n": count * 10, "m": count * 10}],
        )


@pytest.mark.needs("root", "clickhouse")
def test_a_full_disk_of_a_shard_is_said_and_waited_for() -> None:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        loopdisks.mounted(Path(home) / "small", "-t", "tmpfs", "-o", "size=24m", "tmpfs") as small,
        Cluster(
            Path(home) / "cluster", replicas=1, zookeeper=False, data={(1, 0): small / "data"}
        ) as cluster,
    ):
        place = Place(cluster.url, CLUSTER)
        place.init()
        fill(small / "fill")
        rows = [example(IncidentRow, f"text {n}", uid=f"u{n}", host=f"h{n}") for n in range(200)]
        with pytest.raises(SendError, match="the disk of a server is full") as caught:
            place.send(*rows)
        assert not caught.value.refused
        (small / "fill").unlink()
        place.send(*rows)
        place.becomes(f"SELECT count() AS n FROM {place.table('incidents', 'uid')}", [{"n": 200}])


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass

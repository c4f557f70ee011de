# SPDX-License-Identifier: Apache-2.0
"""What an agent ships: its incidents, their waits, its heartbeats, and what was left by a kill."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.agent.environment import Plan
from stallscope.base.errors import StallscopeError
from stallscope.fleet.address import Address, parse
from stallscope.fleet.facts import Facts
from stallscope.fleet.settings import ShipSettings
from stallscope.fleet.shipping import shipper as shipping
from stallscope.fleet.shipping.record import Record
from stallscope.fleet.shipping.sender import Pace
from stallscope.fleet.shipping.shipper import Shipper, Target
from stallscope.fleet.shipping.waitminutes import MOST_NAMES, WaitMinutes
from stallscope.fleet.shipping.watched import Watched, WatchedDays
from stallscope.model.incident import Fired, Incident, TargetEntry
from stallscope.model.waitlines import ClassWaits, Key, KindWaits, WaitLine
from stallscope.store import Store
from tests.support.servers.waiting import wait_until
from tests.unit.agentfakes import FakeEnvironment, breach, running, stored
from tests.unit.shipfakes import FakeDestination

__all__: list[str] = []

SOON = Pace(heartbeat=3600, first=0, first_beat=0, spread=0, retry=0.01, longest_retry=0.05)
ADDRESS = parse("file:///fake")
SERVER = Watched("db1", "mysqld", 4711, server="mysql")


def incident(name: str = "20261129T101010.000Z-mysqld-4711", **more: Any) -> Incident:
    values = {
        "id": name,
        "start_ns": time.time_ns(),
        "target": TargetEntry(4711, "mysqld", host="db1"),
        "triggers": (Fired("busy", "Threads_running is 187", time.time_ns()),),
    }
    return Incident(**{**values, **more})


@contextmanager
def shipper_to(
    *destinations: FakeDestination,
    folder: Path,
    settings: ShipSettings | None = None,
    store: Path | None = None,
    continues: float = 0.0,
) -> Iterator[Shipper]:
    made = Shipper(
        folder / "ship",
        settings or ShipSettings(),
        targets(*destinations),
        store=store,
        continues=continues,
        pace=SOON,
    )
    made.start()
    try:
        yield made
    finally:
        for destination in destinations:
            destination.gate.set()
        made.close(5.0)


def targets(*destinations: FakeDestination) -> list[Target]:
    return [Target(parse(destination.shown), destination) for destination in destinations]


def test_an_incident_is_shipped_open_and_again_at_its_end(tmp_path: Path) -> None:
    destination = FakeDestination()
    with shipper_to(destination, folder=tmp_path) as shipper:
        first = incident()
        shipper.take("open", 1, first, None)
        shipper.take("verdict", 1, first, None, Facts(version="8.4.3"))
        wait_until(lambda: len(destination.rows("incidents")) == 1, "it is shipped open")
        ended = msgspec.structs.replace(first, end_ns=time.time_ns())
        shipper.take("ending", 1, ended, None)
        shipper.take("end", 1, ended, None)
        wait_until(lambda: len(destination.rows("incidents")) == 2, "and at its end")
    before, after = destination.rows("incidents")
    assert before["uid"] == after["uid"]
    assert (before["is_open"], after["is_open"]) == (1, 0)
    assert before["rev"] < after["rev"]


def test_all_destinations_get_it_and_one_that_hangs_delays_no_other(tmp_path: Path) -> None:
    good, bad = FakeDestination("file:///good"), FakeDestination("file:///bad")
    bad.gate.clear()
    with shipper_to(good, bad, folder=tmp_path) as shipper:
        for number in range(5):
            ended = incident(f"20261129T10101{number}.000Z-mysqld-4711", end_ns=time.time_ns())
            shipper.take("end", number, ended, None)
        wait_until(lambda: len(good.rows("incidents")) == 5, "the good one has all")
        assert bad.batches == []
        assert shipper.numbers()["file:///bad"].waiting >= 1
        bad.gate.set()
        wait_until(lambda: len(bad.rows("incidents")) == 5, "the bad one too")


def test_calls_never_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, written = threading.Event(), threading.Event()

    def put_all(*_: object) -> None:
        gate.wait()
        written.set()

    monkeypatch.setattr(shipping, "put_all", put_all)
    destination = FakeDestination()
    with shipper_to(destination, folder=tmp_path) as shipper:
        for number in range(shipping.MAX_JOBS + 50):
            shipper.take("end", number, incident(end_ns=1), None)
            shipper.watch(SERVER)
        assert not written.is_set()
        assert shipper.failed > 0
        gate.set()


def test_heartbeats_say_how_it_is(tmp_path: Path) -> None:
    destination = FakeDestination()
    destination.fail("down")
    settings = ShipSettings(host="shown-name")
    with shipper_to(destination, folder=tmp_path, settings=settings) as shipper:
        shipper.watch(SERVER)
        shipper.take("end", 1, incident(end_ns=time.time_ns()), None)
        wait_until(lambda: shipper.problems(), "it fails")
        assert shipper.problems() == {"file:///fake": "down"}
        destination.fault = None
        wait_until(lambda: not shipper.problems(), "it works again")
    last = destination.rows("agents")[-1]
    assert (last["host"], last["program"], last["pid"]) == ("shown-name", "mysqld", 4711)
    assert last["state"] == "ended"
    assert last["skew_ms"] == 12.5
    assert last["every_s"] == 60.0


def test_a_last_heartbeat_that_is_not_sent_is_in_the_spool(tmp_path: Path) -> None:
    destination = FakeDestination()
    destination.fail("down")
    with shipper_to(destination, folder=tmp_path) as shipper:
        shipper.watch(SERVER)
        wait_until(lambda: destination.asked, "it was tried")
    later = FakeDestination()
    with shipper_to(later, folder=tmp_path):
        wait_until(lambda: later.rows("agents"), "the next agent sends it")
    assert later.rows("agents")[0]["state"] == "ended"


def has_beats(destination: FakeDestination, count: int) -> bool:
    return len(destination.rows("agents")) >= count


def test_passes_are_one_agent_with_one_heartbeat_each(tmp_path: Path) -> None:
    destination = FakeDestination()
    for number in range(3):
        with shipper_to(destination, folder=tmp_path, continues=50.0) as shipper:
            shipper.watch(SERVER)
            wait_until(partial(has_beats, destination, number + 1), "a heartbeat")
    rows = destination.rows("agents")
    assert len({row["started_ms"] for row in rows}) == 1
    assert {row["state"] for row in rows} == {"watching"}
    assert [row["watched_s"] for row in rows] == sorted(row["watched_s"] for row in rows)


def test_a_reload_changes_destinations(tmp_path: Path) -> None:
    old, new = FakeDestination("file:///old"), FakeDestination("file:///new")
    with shipper_to(old, folder=tmp_path) as shipper:
        shipper.take("end", 1, incident(end_ns=1), None)
        wait_until(lambda: old.rows("incidents"), "the old one gets it")
        shipper.configure(ShipSettings(url="file:///new"), targets(new))
        shipper.take("end", 2, incident("20261129T111111.000Z-mysqld-4711", end_ns=1), None)
        wait_until(lambda: new.rows("incidents"), "the new one gets it")
        shipper.configure(ShipSettings(), ())
        wait_until(lambda: not shipper.numbers(), "nothing is shipped any more")
    assert len(old.rows("incidents")) == 1
    assert old.closed
    assert new.closed


def test_without_a_destination_it_does_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    with shipper_to(folder=tmp_path) as shipper:
        shipper.take("end", 1, incident(), None)
        shipper.watch(SERVER)
        assert threading.active_count() == before
    assert not (tmp_path / "ship").exists()


def test_the_agents_loop_ships_what_it_stores(tmp_path: Path) -> None:
    destination = FakeDestination()
    environment = FakeEnvironment()
    environment.made_shipper = Shipper(
        tmp_path / "ship", ShipSettings(), targets(destination), pace=SOON
    )
    with running(environment, tmp_path / "store"):
        breach(environment)
    (kept,) = stored(tmp_path / "store")
    rows = destination.rows("incidents")
    assert {row["id"] for row in rows} == {kept.id}
    assert len({row["uid"] for row in rows}) == 1, "its origin is that of the store"
    last = max(rows, key=lambda row: row["rev"])
    assert last["signature"] == "metadata-lock"
    assert last["captured"] == 3
    assert "Threads_running" in last["samples_name"]
    assert destination.rows("agents")[-1]["state"] == "ended"
    assert kept.id in Record(tmp_path / "ship" / "incidents", 0)


def test_a_dry_run_ships_nothing(tmp_path: Path) -> None:
    destination = FakeDestination()
    environment = FakeEnvironment()
    environment.made_shipper = Shipper(
        tmp_path / "ship", ShipSettings(), targets(destination), pace=SOON
    )
    with running(environment, tmp_path / "store", plan=Plan(captures=False)) as agent:
        environment.status.value = 100
        wait_until(lambda: agent.fired, "it would fire")
    assert destination.asked == 0
    assert not (tmp_path / "ship").exists()


def in_store(dest: Path, name: str, **more: Any) -> str:
    folder = Store.open(dest).begin(incident(name, **more))
    folder.update(folder.incident)
    folder.finish(msgspec.structs.replace(folder.incident, end_ns=time.time_ns()))
    return folder.path.name


def test_what_a_killed_agent_left_is_shipped_once(tmp_path: Path) -> None:
    dest = tmp_path / "store"
    destination = FakeDestination()
    with shipper_to(destination, folder=tmp_path, store=dest) as shipper:
        shipper.watch(SERVER)  # the record begins
    old = in_store(dest, "20261128T101010.000Z-mysqld-4711", start_ns=10**18)
    left = in_store(dest, "20261129T101010.000Z-mysqld-4711")
    other = in_store(
        dest, "20261129T101011.000Z-mysqld-1", target=TargetEntry(1, "mysqld", host="db2")
    )
    with shipper_to(destination, folder=tmp_path, store=dest) as shipper:
        shipper.recover(lambda entry: entry.host == "db1")
        wait_until(lambda: left in ids(rows(destination)), "a child has made its rows")
    first = len(rows(destination))
    with shipper_to(destination, folder=tmp_path, store=dest) as shipper:
        shipper.recover(lambda entry: entry.host == "db1")
        shipper.take("end", 9, incident("20261129T101012.000Z-mysqld-4711", end_ns=1), None)
        wait_until(lambda: len(rows(destination)) > first, "it works as before")
    assert ids(rows(destination)).count(left) == 1
    assert not {old, other} & set(ids(rows(destination)))


def rows(destination: FakeDestination) -> list[dict[str, Any]]:
    return destination.rows("incidents")


def ids(found: Sequence[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in found]


# The record.


def test_the_record_is_bounded_and_survives_a_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.fleet.shipping.record.MAX_BYTES", 2_000)
    monkeypatch.setattr("stallscope.fleet.shipping.record.KEPT", 20)
    path = tmp_path / "incidents"
    record = Record(path, 123)
    names = [f"20261129T1010{n // 60:02d}.{n:03d}Z-mysqld-1" for n in range(100)]
    for name in names:
        record.add(name)
    assert path.stat().st_size <= 2_000 + 100
    with path.open("a") as file:
        file.write("20261129T2")
    again = Record(path, 999)
    assert again.since_ms == 123
    assert names[-1] in again
    assert names[0] not in again
    assert "20261129T2" not in again


@pytest.mark.parametrize("content", [b"", b"since x\n", b"\xff\xfe\n", b"since 5\nnot an id\n"])
def test_a_damaged_record_begins_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "incidents"
    path.write_bytes(content)
    record = Record(path, 77)
    assert record.since_ms in (5, 77)
    record.add("20261129T101010.000Z-mysqld-4711")
    assert "20261129T101010.000Z-mysqld-4711" in Record(path, 78)


# Waits.


def wait_line(minute: int, *keys: Key, **more: Any) -> WaitLine:
    kinds: dict[str, KindWaits] = {}
    for key in keys:
        old = kinds.get(key.kind, KindWaits(0, 0.0, 0.0))
        kinds[key.kind] = KindWaits(
            old.count + key.count, old.total_ms + key.total_ms, max(old.max_ms, key.max_ms)
        )
    return WaitLine("stallscope.waits/1", minute * 60.0 + 1, 1.0, kinds, keys, {}, **more)


def key(name: str, total_ms: float, kind: str = "mutex", **more: Any) -> Key:
    return Key(2, total_ms, total_ms / 2, 1, kind=kind, name=name, **more)


def test_waits_are_added_up_by_minute() -> None:
    waits = WaitMinutes()
    waits.add(wait_line(10, key("LOCK_open", 5.0), key("t1", 3.0, "row-lock")))
    waits.add(wait_line(10, key("LOCK_open", 7.0)))
    waits.add(wait_line(11, key("LOCK_open", 1.0)))
    found = waits.take("db1", "mysqld", 1, 11 * 60_000 + 5)
    assert [(r.minute_ms, r.kind, r.name, r.count, r.total_ms, r.max_ms) for r in found] == [
        (600_000, "mutex", "LOCK_open", 4, 12.0, 3.5),
        (600_000, "row-lock", "t1", 2, 3.0, 1.5),
    ]
    assert found[0].day == "1970-01-01"
    (last,) = waits.take("db1", "mysqld", 1, 12 * 60_000, unfinished=True)
    assert (last.minute_ms, last.total_ms) == (660_000, 1.0)


def test_waits_of_a_minute_are_bounded_and_none_is_lost() -> None:
    waits = WaitMinutes()
    for _ in range(3):
        waits.add(wait_line(10, *(key(f"lock-{number}", float(number)) for number in range(500))))
    found = waits.take("db1", "mysqld", 1, 0, unfinished=True)
    assert len(found) == MOST_NAMES + 1
    assert [row.name for row in found[:2]] == ["lock-499", "lock-498"]
    assert found[-1].name == ""
    assert sum(row.count for row in found) == 3 * 500 * 2
    assert sum(row.total_ms for row in found) == pytest.approx(3 * sum(range(500)))


def test_files_count_by_class_and_tables_are_private() -> None:
    waits = WaitMinutes(redact=True)
    classes = (ClassWaits(4, 9.0, 3.0, kind="fsync", file_class="redo"),)
    line = wait_line(
        10,
        key("/var/lib/mysql/secret/t.ibd", 5.0, "fsync", file_class="data"),
        key("`secret`.`t`", 2.0, "row-lock"),
        key("0xdeadbeef", 1.0, "futex"),
        classes=classes,
    )
    waits.add(line)
    found = waits.take("db1", "mysqld", 1, 0, unfinished=True)
    assert "secret" not in repr(found)
    assert {(row.kind, row.name) for row in found} == {
        ("fsync", "redo"),
        ("row-lock", ""),
        ("futex", ""),
    }


def test_waits_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallscope.fleet.shipping.waitminutes.MOST_ROWS", 10)
    waits = WaitMinutes()
    for minute in range(100):
        waits.add(wait_line(minute, key("LOCK_open", 5.0)))
    assert len(waits.take("db1", "mysqld", 1, 0, unfinished=True)) == 10
    assert waits.dropped == 90


# Watched time.

DAY_NS = 86_400 * 10**9


def test_watched_time_is_of_its_day_and_process(tmp_path: Path) -> None:
    days = WatchedDays(tmp_path, "", 60.0, continues=False)
    start = 20_000 * DAY_NS - 20 * 10**9  # 20 s before midnight
    ended = []
    for second in range(0, 45, 5):
        ended += days.note(SERVER, start + second * 10**9, 100.0 + second)
    (old,) = ended
    assert (old.watched_s, old.state) == (20.0, "watching")
    (now,) = days.now(start + 45 * 10**9, 145.0)
    assert now.day != old.day
    assert now.watched_s == 25.0
    assert now.started_ms == old.started_ms
    waiting = msgspec.structs.replace(SERVER, runs=False)
    days.note(waiting, start + 50 * 10**9, 150.0)
    days.note(waiting, start + 60 * 10**9, 160.0)
    (now,) = days.now(start + 65 * 10**9, 165.0)
    assert (now.state, now.watched_s) == ("waiting", 25.0)
    (gone,) = days.note(msgspec.structs.replace(SERVER, pid=5), start + 70 * 10**9, 170.0)
    assert (gone.state, gone.pid) == ("ended", 4711)


def test_time_in_which_the_agent_did_not_run_does_not_count(tmp_path: Path) -> None:
    days = WatchedDays(tmp_path, "", 60.0, continues=False)
    days.note(SERVER, 0, 0.0)
    days.note(SERVER, 3600 * 10**9, 3600.0)
    (row,) = days.now(3600 * 10**9, 3600.0)
    assert row.watched_s == 30.0


def test_an_address_in_a_message_has_no_password() -> None:
    address = parse("clickhouse+https://u:hidden@h/db")
    assert isinstance(address, Address)
    assert "hidden" not in repr(Target(address, FakeDestination()))
    with pytest.raises(StallscopeError) as found:
        parse("clickhouse+https://u:hidden@h:x/db")
    assert "hidden" not in str(found.value)

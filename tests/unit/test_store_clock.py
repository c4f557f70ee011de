# SPDX-License-Identifier: Apache-2.0
"""Clocks that are set, hosts that are suspended, off or others: what is old, and in which order."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from stallscope.store import Retention, Store, layout, listing
from stallscope.store.retention import age_ns, held_back
from stallscope.store.storeclock import Now, StoreClock
from tests.support.chance import SEED
from tests.unit.storelife import FakeTimes, incident

NS = 10**9
DAY = 86_400 * NS
HOUR = 3600 * NS


def begin(store: Store, number: int, times: FakeTimes) -> str:
    """Begin and finish an incident now; its id and start are of the wall clock, as the agent's."""
    known = incident(number)
    name = layout.incident_id(times.wall, "mariadbd", number + 1)
    known = msgspec.structs.replace(known, id=name, start_ns=times.wall)
    folder = store.begin(known)
    times.pass_ns(10 * NS)
    # As the agent's state machine knows it: without where the store put it.
    folder.finish(msgspec.structs.replace(known, end_ns=known.start_ns + 10 * NS))
    return name


def agent(times: FakeTimes, store: Store, length_ns: int) -> list[str]:
    """Let an agent run for so long, which prunes at intervals; return what it removed."""
    removed = []
    step_ns = 4 * HOUR if length_ns > 2 * DAY else HOUR
    for _ in range(length_ns // step_ns):
        times.pass_ns(step_ns)
        removed += store.prune(Retention(days=30)).removed
    return removed


@pytest.fixture
def times() -> FakeTimes:
    return FakeTimes()


def filled(dest: Path, times: FakeTimes, many: int = 50) -> Store:
    """A store with an incident a minute."""
    store = Store.open(dest, times)
    for number in range(many):
        begin(store, number, times)
        times.pass_ns(60 * NS)
    return store


def test_a_jump_of_31_days_and_back_removes_nothing(tmp_path: Path, times: FakeTimes) -> None:
    store = filled(tmp_path, times)
    times.set_ns(31 * DAY)
    assert store.prune(Retention(days=30)).removed == []
    assert Store.open(tmp_path, times).prune(Retention(days=30)).removed == []
    times.set_ns(-31 * DAY)
    assert agent(times, store, 2 * DAY) == []
    assert len(listing(tmp_path).incidents) == 50
    # All of the 30 days have to pass, and no more.
    assert agent(times, store, 28 * DAY - 4 * HOUR) == []
    assert len(agent(times, store, 6 * HOUR)) == 49


@pytest.mark.parametrize("by", [31 * DAY, -DAY, -400 * DAY, 10_000 * DAY])
def test_a_clock_that_stays_set_changes_nothing_either(
    tmp_path: Path, times: FakeTimes, by: int
) -> None:
    store = filled(tmp_path, times, 5)
    times.set_ns(by)
    assert agent(times, store, 29 * DAY) == []
    # A clock that was set back by a day is asked too: then it takes a day more.
    assert len(agent(times, store, 3 * DAY)) == 4


def test_a_host_that_was_off_for_40_days_removes_them_after_a_day(
    tmp_path: Path, times: FakeTimes
) -> None:
    filled(tmp_path, times, 5)
    times.off_ns(40 * DAY, "second")
    store = Store.open(tmp_path, times)
    assert agent(times, store, 23 * HOUR) == []
    assert len(agent(times, store, 3 * HOUR)) == 4


def test_a_clock_that_is_wrong_after_a_start_removes_nothing(
    tmp_path: Path, times: FakeTimes
) -> None:
    filled(tmp_path, times, 5)
    times.off_ns(HOUR + 900 * DAY, "second")  # an empty battery: some other year
    store = Store.open(tmp_path, times)
    assert agent(times, store, 20 * HOUR) == []
    times.set_ns(-900 * DAY)  # NTP
    assert agent(times, store, 28 * DAY) == []
    assert len(agent(times, store, 3 * DAY)) == 4


def test_reboots_every_hour(tmp_path: Path, times: FakeTimes) -> None:
    filled(tmp_path, times, 3)
    for number in range(24):
        times.off_ns(60 * NS, f"boot-{number}")
        assert agent(times, Store.open(tmp_path, times), HOUR) == []
    data = msgspec.json.decode((tmp_path / layout.CLOCK).read_bytes())
    assert len(data["boots"]) <= 16
    store_ns = Store.open(tmp_path, times).clock.now().store_ns
    assert times.wall - store_ns < 2 * HOUR, "only the time off is not counted"


def test_a_store_that_was_copied_to_another_host(tmp_path: Path, times: FakeTimes) -> None:
    filled(tmp_path / "a", times, 5)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    times.pass_ns(DAY)
    # That host has been on for a year, and its clock is three days behind.
    other = FakeTimes(times.wall - 3 * DAY, "other")
    other.since = 365 * DAY
    store = Store.open(tmp_path / "b", other)
    begin(store, 70, other)
    assert agent(other, store, 28 * DAY) == []
    assert len(agent(other, store, 5 * DAY)) == 5


def test_two_hosts_with_one_store_do_not_count_twice(tmp_path: Path, times: FakeTimes) -> None:
    one = filled(tmp_path, times, 3)
    other = FakeTimes(times.wall + 5 * DAY, "other")  # whose clock is ahead
    two = Store.open(tmp_path, other)
    for _ in range(10 * 24):
        for store, clock in ((one, times), (two, other)):
            clock.pass_ns(HOUR)
            assert store.prune(Retention(days=12)).removed == []
    begun = listing(tmp_path).incidents[0].order[0]
    for store in (one, two):
        passed = store.clock.now().store_ns - begun
        assert 10 * DAY <= passed <= 10 * DAY + 2 * HOUR
    times.pass_ns(3 * DAY)
    other.pass_ns(3 * DAY)
    assert len(one.prune(Retention(days=12)).removed) == 2


def test_the_order_is_that_of_the_events(tmp_path: Path, times: FakeTimes) -> None:
    rng = random.Random(SEED)
    store = Store.open(tmp_path, times)
    names = []
    for number in range(30):
        names.append(begin(store, number, times))
        times.pass_ns(rng.randrange(1, 100) * NS)
        times.set_ns(rng.randrange(-40, 40) * DAY)
        if rng.random() < 0.2:
            times.off_ns(rng.randrange(1, HOUR), f"boot-{number}")
        if rng.random() < 0.3 or times.boot == f"boot-{number}":
            if rng.random() < 0.5:  # a power loss
                (tmp_path / layout.CLOCK).write_bytes(b"")
            store = Store.open(tmp_path, times)
            store.recover()
    assert [one.id for one in listing(tmp_path).incidents] == names
    assert sorted(names) != names
    gone = store.prune(Retention(days=None, count=10)).removed
    assert gone == names[:20]


def test_what_an_earlier_version_wrote_ages_too(tmp_path: Path, times: FakeTimes) -> None:
    filled(tmp_path, times, 5)
    (tmp_path / layout.CLOCK).unlink()
    for one in listing(tmp_path).incidents:
        path = tmp_path / layout.INCIDENTS / one.id / layout.INCIDENT
        data = msgspec.json.decode(path.read_bytes())
        del data["origin"]
        path.write_bytes(msgspec.json.encode(data))
    times.pass_ns(20 * DAY)
    times.set_ns(31 * DAY)
    store = Store.open(tmp_path, times)  # the upgrade, and the clock is wrong
    assert store.prune(Retention(days=30)).removed == []
    times.set_ns(-31 * DAY)
    assert agent(times, store, 9 * DAY) == []
    assert len(agent(times, store, 2 * DAY)) == 4


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b'{"schema":"x"}', b"[" * 9000])
def test_a_damaged_file_makes_nothing_old(tmp_path: Path, times: FakeTimes, text: bytes) -> None:
    filled(tmp_path, times, 5)
    (tmp_path / layout.CLOCK).write_bytes(text)
    times.set_ns(31 * DAY)
    store = Store.open(tmp_path, times)
    assert agent(times, store, 12 * HOUR) == []


def test_it_can_be_asked_where_nothing_can_be_written(
    tmp_path: Path, times: FakeTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, times, 2)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = store.clock.now()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        times.pass_ns(DAY)
        assert store.clock.tick().store_ns == before.store_ns + DAY
    assert StoreClock(tmp_path, times).now().store_ns == before.store_ns + DAY


def test_ages() -> None:
    one = msgspec.structs.replace(incident(0), start_ns=100 * DAY, end_ns=101 * DAY)
    assert age_ns(one, Now(111 * DAY, 121 * DAY)) == 10 * DAY
    assert age_ns(one, Now(131 * DAY, 121 * DAY)) == 20 * DAY
    assert age_ns(one, Now(90 * DAY, 121 * DAY)) == 20 * DAY, "it is of the future"
    assert age_ns(one, Now(90 * DAY, 90 * DAY)) == 0


def test_how_many_wait_for_the_clock_to_be_steady(tmp_path: Path, times: FakeTimes) -> None:
    store = filled(tmp_path, times, 5)
    keep = Retention(days=30)
    times.off_ns(40 * DAY, "second")
    store = Store.open(tmp_path, times)
    found = listing(tmp_path).incidents
    assert held_back(found, keep, store.clock.now()) == 5
    assert held_back(found, Retention(days=None), store.clock.now()) == 0
    agent(times, store, 26 * HOUR)
    assert held_back(listing(tmp_path).incidents, keep, store.clock.now()) == 0

# SPDX-License-Identifier: Apache-2.0
"""What retention removes, and what it never touches."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import StallscopeError
from stallscope.model.incident import CaptureEntry
from stallscope.store import IncidentFolder, Retention, Store, Summary, layout, locking
from stallscope.store.retention import expired
from stallscope.store.storeclock import Now
from tests.unit.storelife import CAPTURE, START_NS, FakeTimes, fill, incident

DAY_NS = 86_400 * 10**9


def summary(number: int, *, size: int = 100, going_on: bool = False) -> Summary:
    known = incident(number)
    return Summary(
        id=known.id,
        start_ns=known.start_ns,
        target=known.target,
        stamp=(0, 0, 0, 0),
        end_ns=None if going_on else known.start_ns,
        bytes=size,
        going_on=going_on,
    )


def at(time_ns: int) -> Now:
    return Now(time_ns, time_ns)


def numbers(old: list[Summary]) -> list[int]:
    return [(one.start_ns - START_NS) // 10**9 for one in old]


def test_the_oldest_beyond_each_limit() -> None:
    incidents = [summary(number) for number in (3, 1, 4, 2)]
    everything = Retention(days=None)
    assert expired(incidents, everything, at(START_NS)) == []
    assert numbers(expired(incidents, Retention(days=None, count=3), at(START_NS))) == [1]
    assert numbers(expired(incidents, Retention(days=None, bytes=250), at(START_NS))) == [1, 2]
    now = START_NS + 30 * DAY_NS + 2 * 10**9 + 1
    assert numbers(expired(incidents, Retention(), at(now))) == [1, 2]


def test_the_newest_is_always_kept() -> None:
    incidents = [summary(number) for number in (1, 2)]
    for keep in (Retention(days=0.001), Retention(count=1), Retention(bytes=1)):
        assert numbers(expired(incidents, keep, at(START_NS + 900 * DAY_NS))) == [1]
    assert expired([], Retention(), at(START_NS)) == []
    assert expired(incidents, Retention(), at(START_NS - 900 * DAY_NS)) == [], "it was set back"


def test_one_that_goes_on_is_kept_and_counts() -> None:
    incidents = [summary(1, going_on=True), summary(2), summary(3)]
    assert numbers(expired(incidents, Retention(days=None, count=2), at(START_NS))) == [2]


def filled(dest: Path, count: int) -> Store:
    store = Store.open(dest)
    for number in range(1, count + 1):
        fill(store, number, lambda _: None)
    return store


def names(store: Store) -> list[str]:
    return sorted(os.listdir(store.incidents))


def begun(store: Store, number: int) -> IncidentFolder:
    return store.begin(incident(number))


def test_incidents_go_and_nothing_else(tmp_path: Path) -> None:
    """pt-stalk removed whatever in --dest was old enough."""
    store = filled(tmp_path, 3)
    foreign = [
        tmp_path / "backup.sql",
        tmp_path / "2026_11_21_10_00_00-mysqladmin",
        tmp_path / "old" / "incident.json",
        store.incidents / "notes.txt",
        store.incidents / "20260101T000000" / "incident.json",
        store.incidents / ".gone-mine" / "incident.json",
        store.incidents / ".new-mine" / "incident.json",
        store.incidents / "20250101T000000.000Z-mysqld-1" / "mine",
        store.incidents / "20250101T000000.001Z-mysqld-1" / "incident.json",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
        os.utime(path, (0, 0))
        os.utime(path.parent, (0, 0))
    link = store.incidents / incident(9).id
    link.symlink_to(tmp_path / "old")
    done = store.prune(Retention(days=None, count=1))
    assert done.removed == [incident(1).id, incident(2).id]
    assert all(path.read_text() == "precious" for path in foreign)
    assert link.is_symlink()
    assert incident(1).id not in names(store)


LINKS = ("captures/0009.jsonl.zst", "texts/a.txt", "waits.jsonl.zst")
"""Names of our own: what is there in their place is a link."""


@pytest.mark.parametrize(
    "name", ["NOTES", "captures/core.1", "texts/a.sql", "captures/x/y", *LINKS]
)
def test_an_incident_with_a_file_of_the_user_is_kept(tmp_path: Path, name: str) -> None:
    store = filled(tmp_path / "store", 2)
    first = store.incidents / incident(1).id
    own = sorted(str(path) for path in first.rglob("*"))
    path = first / name
    path.parent.mkdir(exist_ok=True)
    if name in LINKS:
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / "precious")
    path.write_text("precious")
    done = store.prune(Retention(days=None, count=1))
    assert done.removed == []
    assert name.split("/")[0] in done.notes[0].message
    assert path.read_text() == "precious"
    assert path.is_symlink() == (name in LINKS)
    assert set(own) <= {str(path) for path in first.rglob("*")}


def test_one_that_another_agent_writes_is_kept(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with begun(store, 1), begun(store, 2) as second:
        second.finish()
        fill(store, 3, lambda _: None)
        done = Store.open(tmp_path).prune(Retention(days=None, count=1))
        assert done.removed == [incident(2).id]
        assert incident(1).id in names(store)
    assert store.prune(Retention(days=None, count=1)).removed == [incident(1).id]


@pytest.mark.parametrize("stop_after", [0, 1, 4, 7])
def test_an_interrupted_removal_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    store = filled(tmp_path, 2)
    real = os.unlink
    left = stop_after

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        nonlocal left
        if dir_fd is not None:  # else a temporary file
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
        real(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            store.prune(Retention(days=None, count=1))
    assert [one.id for one in store.listing().incidents] == [incident(2).id]
    assert store.listing().notes == []
    assert len(names(store)) == 2
    assert store.prune(Retention()).notes == []
    assert names(store) == [incident(2).id]


def test_what_killed_writers_left_goes_when_it_is_old(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    aside = store.incidents / f"{layout.ASIDE}{'0' * 16}"
    (aside / "captures").mkdir(parents=True)
    (aside / ".incident.json.0123456789ab.tmp").write_text("{")
    torn = [
        tmp_path / ".index.json.0123456789ab.tmp",
        tmp_path / "deadlocks" / ".a.json.0123456789ab.tmp",
    ]
    foreign = tmp_path / ".backup.sql.0123456789ab.tmp"
    for path in (*torn, foreign):
        path.write_text("{")
    store.prune(Retention())
    assert all(path.exists() for path in (aside, *torn))
    Store(tmp_path, FakeTimes(time.time_ns() + 2 * 3600 * 10**9)).prune(Retention())
    assert not any(path.exists() for path in (aside, *torn))
    assert foreign.exists()


def test_a_folder_of_somebody_else_is_no_store(tmp_path: Path) -> None:
    for name in ("index.json", "incidents", "lock"):
        dest = tmp_path / name
        dest.mkdir()
        (dest / name).write_text("precious")
        with pytest.raises(StallscopeError, match="--dest"):
            Store.open(dest)
        assert (dest / name).read_text() == "precious"
        assert os.listdir(dest) == [name]


def test_two_do_not_prune_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 2)
    monkeypatch.setattr("stallscope.store.store._LOCK_SECONDS", 0.05)
    held = locking.take(tmp_path / layout.MARK)
    with pytest.raises(StallscopeError, match="locked by another process"):
        store.prune(Retention(count=1))
    held.release()
    assert len(store.prune(Retention(count=1)).removed) == 1


def test_size_counts_bytes_on_disk(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with begun(store, 1) as folder:
        folder.add_capture(CAPTURE, CaptureEntry("", 1, "trigger"))
        folder.finish(msgspec.structs.replace(folder.incident, end_ns=START_NS))
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    expected = sum(path.stat().st_blocks * 512 for path in files)
    assert store.listing().incidents[0].bytes == expected > 0
    assert store.last_capture_bytes == (folder.path / "captures/0001.jsonl.zst").stat().st_size

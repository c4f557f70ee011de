# SPDX-License-Identifier: Apache-2.0
"""A disk that fills while an incident is written."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import StallscopeError
from stallscope.model.incident import CaptureEntry
from stallscope.store import DiskGuard, IncidentFolder, Retention, Store, listing, read_incident
from tests.unit.storelife import CAPTURE, incident, sample

pytestmark = pytest.mark.needs("root")

ONE_LINE = r"^cannot (write|make) /[^\n]*: No space left on device$"


@contextlib.contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_up(file: Path, leave: int) -> None:
    """Write until ``leave`` bytes, whole pages, are free."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as output:
        while output.write(b"x" * 4096):
            pass
    with file.open("r+b") as output:
        output.truncate(max(0, file.stat().st_size - leave))


def noise(number: int) -> str:
    """Return a text of ten pages that takes half of them compressed."""
    return random.Random(number).randbytes(20_000).hex()


def steps(folder: IncidentFolder) -> None:
    """Do one thing of each kind that takes room."""
    folder.append_samples([msgspec.structs.replace(sample(0), error=noise(1))])
    folder.add_text("status", noise(2))
    folder.add_capture(CAPTURE, CaptureEntry("", 1, "burst"))
    folder.append_raw_sql([noise(3).encode()])
    folder.suppress("the disk is full")


@pytest.mark.parametrize("pages", range(0, 40, 2))
def test_nothing_is_torn_wherever_the_disk_ends(tmp_path: Path, pages: int) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        store = Store.open(disk / "store")
        with store.begin(incident(1)) as folder:
            first = folder.add_capture(CAPTURE, CaptureEntry("", 1, "trigger"))
            folder.append_samples([sample(0)])
            fill_up(disk / "others", pages * 4096)
            if pages < 20:
                with pytest.raises(StallscopeError, match=ONE_LINE):
                    steps(folder)
            else:
                with contextlib.suppress(StallscopeError):
                    steps(folder)
            check_whole(store, folder, first)
            (disk / "others").unlink()
            # With room again it goes on, and what could not be written then is now.
            steps(folder)
            folder.finish(msgspec.structs.replace(folder.incident, end_ns=incident(2).start_ns))
        check_whole(store, folder, first)
        stored = read_incident(folder.path)
        assert len(stored.samples()) >= 2
        assert stored.texts()
        assert stored.incident.suppressed >= 1
        assert not [p for p in folder.path.rglob("*") if p.name.endswith(".tmp")]


def check_whole(store: Store, folder: IncidentFolder, first: CaptureEntry) -> None:
    found = listing(store.dest, rebuild=True)
    assert [summary.id for summary in found.incidents] == [folder.incident.id]
    assert found.notes == []
    stored = read_incident(folder.path)
    assert first in stored.incident.captures
    assert all(capture.error is None for capture in stored.captures())
    assert stored.samples()[0] == sample(0)
    assert all(len(text) == 40_000 for text in stored.texts().values())
    assert all(len(line) == 40_000 for line in stored.raw_sql())
    assert {note.code for note in stored.notes} <= {"capture-unlisted"}


def test_an_incident_that_does_not_fit_is_not_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        store = Store.open(disk / "store")
        fill_up(disk / "others", 0)
        with pytest.raises(StallscopeError, match=ONE_LINE):
            store.begin(incident(1))
        assert list(store.incidents.iterdir()) == []


def test_the_guard_counts_the_capture_that_is_to_come(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4096) as disk:
        store = Store.open(disk / "store")
        mib = 1 << 20
        assert store.too_little_space(DiskGuard(bytes_free=3 * mib, pct_free=5)) is None
        assert "disk-bytes-free" in str(store.too_little_space(DiskGuard(5 * mib, 0)))
        assert "disk-pct-free" in str(store.too_little_space(DiskGuard(0, 99.95)))
        assert "disk-bytes-free" in str(store.too_little_space(DiskGuard(3 * mib, 0), expected=mib))
        with store.begin(incident(1)) as folder:
            folder.add_text("noise", noise(1))
            folder.add_capture(b"\x28\xb5\x2f\xfd" + bytes(mib), CaptureEntry("", 1, "trigger"))
        assert store.last_capture_bytes == mib + 4
        assert "disk-bytes-free" in str(
            store.too_little_space(DiskGuard(bytes_free=2 * mib, pct_free=0))
        )


def fill_store(store: Store, many: int) -> None:
    for number in range(1, many + 1):
        with store.begin(incident(number)) as folder:
            folder.add_capture(CAPTURE, CaptureEntry("", 1, "trigger"))
            folder.finish(msgspec.structs.replace(folder.incident, end_ns=incident(9).start_ns))


def fill_completely(disk: Path) -> None:
    fill_up(disk / "others", 0)
    assert os.statvfs(disk).f_bavail == 0


def test_limits_hold_on_a_disk_without_a_free_byte(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        store = Store.open(disk / "store")
        fill_store(store, 8)
        store.refresh_index()
        fill_completely(disk)
        done = store.prune(Retention(days=None, count=3))
        assert (len(done.removed), done.notes) == (5, [])
        assert len(os.listdir(store.incidents)) == 3
        found = listing(store.dest)
        assert [one.id for one in found.incidents] == [incident(n).id for n in (6, 7, 8)]
        assert found.notes == []
        assert os.statvfs(disk).f_bavail > 0
        fill_completely(disk)
        assert len(Store.open(store.dest).prune(Retention(days=None, bytes=1)).removed) == 2


def test_an_incident_finds_room_where_others_are_beyond_the_limits(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        store = Store.open(disk / "store")
        assert store.prune(Retention(days=None, count=2)).removed == []
        fill_store(store, 4)
        fill_completely(disk)
        with store.begin(incident(5)) as folder:
            folder.add_capture(CAPTURE, CaptureEntry("", 1, "trigger"))
        assert [one.id for one in listing(store.dest).incidents] == [
            incident(n).id for n in (3, 4, 5)
        ]
        fill_completely(disk)
        store.prune(Retention(days=None, count=5))
        with pytest.raises(StallscopeError, match=ONE_LINE):  # nothing may be removed
            store.begin(incident(6))
        assert len(listing(store.dest).incidents) == 3


def test_a_disk_without_room_for_a_longer_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path)
    fill_store(store, 2)
    rename = os.rename
    refused: list[Path] = []

    def full(source: Path, target: Path) -> None:
        if list(source.glob("captures/*")):
            refused.append(source)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    monkeypatch.setattr(os, "rename", full)
    assert store.prune(Retention(days=None, count=1)).removed == [incident(1).id]
    assert [path.name for path in refused] == [incident(1).id]
    assert os.listdir(store.incidents) == [incident(2).id]


def test_one_incident_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path)
    monkeypatch.setattr("stallscope.store.writing.announce.__defaults__", (100_000,))
    with store.begin(incident(1)) as folder:
        folder.append_raw_sql([b"x" * 60_000])
        spooled = tmp_path / "spooled.jsonl.zst"
        spooled.write_bytes(b"x" * 50_000)
        too_large = r"too much for one incident$"
        with pytest.raises(StallscopeError, match=too_large):
            folder.add_capture(spooled, CaptureEntry("", 1, "burst"))
        assert not spooled.exists()
        with pytest.raises(StallscopeError, match=too_large):
            folder.add_text("status", "x" * 50_000)
        with pytest.raises(StallscopeError, match=too_large):
            folder.append_raw_sql([b"x" * 50_000])
        folder.append_samples([sample(0)])
        folder.add_capture(CAPTURE, CaptureEntry("", 1, "burst"))
    stored = read_incident(folder.path)
    assert len(stored.raw_sql()) == 1
    assert len(stored.entries()) == 1
    assert sum(path.stat().st_size for path in folder.path.rglob("*")) < 150_000


@pytest.mark.parametrize("how", ["read-only", "full"])
def test_a_store_that_cannot_be_written(tmp_path: Path, how: str) -> None:
    """The agent runs, and says so; it takes no lock where it cannot."""
    with small_disk(tmp_path / "disk", 1024) as disk:
        fill_store(Store.open(disk / "store"), 2)
        if how == "full":
            fill_completely(disk)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        words = ("watch", "-p", os.getpid(), "--dest", disk / "store", "--no-sql", "--no-probe")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "stallscope", *map(str, words), "--once"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert len(listing(disk / "store").incidents) == 2
        # A tmpfs makes a directory without a free byte.
        if how == "read-only":
            assert "cannot be written, and incidents are not stored" in done.stderr
            assert "Read-only file system" in done.stderr

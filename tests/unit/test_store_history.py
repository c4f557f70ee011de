# SPDX-License-Identifier: Apache-2.0
"""What the agent writes of its threads for other processes: limits, damage, who removes it."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from stallscope.base import host
from stallscope.base.errors import StallscopeError
from stallscope.model.waitlines import ThreadRow, ThreadSample
from stallscope.store import Retention, Store, history, layout
from stallscope.store.history import HistoryWriter, find
from tests.unit.threadlines import IDLE, RUNNING, sample

NS = 10**9
START = 1_732_395_600 * NS


def at(second: int, *rows: ThreadRow) -> ThreadSample:
    return sample(START + second * NS, *(rows or (IDLE, RUNNING)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def test_what_was_written_is_found_by_the_servers_pid(store: Store) -> None:
    writer = HistoryWriter(store.dest)
    assert find(store.dest, [4711]) is None
    writer.append("mariadbd", (4711,), [at(0), at(1)])
    writer.append("mariadbd", (4711,), [at(2)])
    assert find(store.dest, [4712]) is None
    found = find(store.dest, [1, 4711])
    assert found is not None
    assert found.samples == (at(0), at(1), at(2))
    assert (found.target.name, found.target.agent, found.wrong) == ("mariadbd", os.getpid(), 0)
    writer.append("mariadbd", (4800,), [at(3)])
    assert find(store.dest, [4711]) is None, "it watches another process now"
    later = find(store.dest, [4800])
    assert later is not None
    assert len(later.samples) == 4
    writer.close()
    writer.append("mariadbd", (4800,), [at(4)])
    assert find(store.dest, [4800]) is None, "its agent has ended"


def test_only_its_owner_can_read_it(store: Store) -> None:
    writer = HistoryWriter(store.dest)
    writer.append("x", (1,), [at(0)])
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((writer.path / "0.jsonl").stat().st_mode) == 0o600
    writer.close()


def test_two_files_of_a_limited_size_take_turns(store: Store) -> None:
    writer = HistoryWriter(store.dest, max_bytes=2000)
    for second in range(200):
        writer.append("x", (1,), [at(second)])
        sizes = [(writer.path / name).stat().st_size for name in os.listdir(writer.path)]
        assert max(sizes) <= 2000
    assert sorted(os.listdir(writer.path)) == ["0.jsonl", "1.jsonl"]
    found = find(store.dest, [1])
    assert found is not None
    seconds = [(sample.time_ns - START) // NS for sample in found.samples]
    assert seconds == list(range(seconds[0], 200))
    assert len(seconds) >= 2000 // 110, "at least one whole file"
    writer.close()


def test_a_torn_line_costs_only_itself(store: Store) -> None:
    cut = 7
    writer = HistoryWriter(store.dest)
    hostile = at(0, ThreadRow(1, "S", "futex", "mutex", "a\nb\x1b\ud800", None))
    writer.append("x", (1,), [hostile, at(1)])
    file = writer.path / "0.jsonl"
    data = file.read_bytes()
    file.write_bytes(data[:-cut])
    found = find(store.dest, [1])
    assert found is not None
    assert [sample.rows[0].kind for sample in found.samples] == ["mutex"]
    file.write_bytes(data[:-cut] + b"\n[\n\xff\n[1,2,3]\n{}\n" + data.splitlines()[-1] + b"\n")
    found = find(store.dest, [1])
    assert found is not None
    assert found.samples[1:] == (at(1),)
    assert found.wrong == 5
    writer.close()


def test_a_link_in_its_place_is_not_followed(store: Store, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious\n")
    first = HistoryWriter(store.dest)
    first.append("x", (1,), [at(0)])
    first.close()
    folder = first.path
    (folder / "0.jsonl").unlink()
    (folder / "0.jsonl").symlink_to(other)
    writer = HistoryWriter(store.dest)
    with pytest.raises(StallscopeError, match="cannot write"):
        writer.append("x", (1,), [at(0)])
    assert other.read_text() == "precious\n"
    assert find(store.dest, [1]) is None
    writer.close()


def test_what_a_process_with_the_same_pid_left_is_removed(store: Store) -> None:
    first = HistoryWriter(store.dest, max_bytes=300)
    for second in range(10):
        first.append("x", (1,), [at(second)])
    first.close()
    writer = HistoryWriter(store.dest)
    writer.append("y", (2,), [at(50)])
    found = find(store.dest, [2])
    assert found is not None
    assert found.samples == (at(50),)
    writer.close()


def leave(store: Store, name: str, age: float) -> Path:
    folder = store.dest / layout.HISTORY / name
    folder.mkdir(parents=True)
    (folder / "0.jsonl").write_text("{}\n")
    for path in (folder / "0.jsonl", folder):
        os.utime(path, (time.time() - age,) * 2)
    return folder


def own(pid: int) -> str:
    """The name of a folder of another process here."""
    return f"{pid}-{host.host_id()}-{host.digest('boot', host.boot_id())}"


def test_retention_keeps_what_the_last_ended_agents_left(store: Store) -> None:
    writer = HistoryWriter(store.dest)
    writer.append("x", (1,), [at(0)])
    os.utime(writer.path / "0.jsonl", (1, 1))
    recent = [leave(store, own(20 + n), 10 + n) for n in range(history.MAX_OF_DEAD)]
    old = [leave(store, own(11), 4000), leave(store, "11", 4000)]
    foreign = leave(store, own(12), 5000)
    (foreign / "mine").write_text("x")
    os.utime(foreign, (time.time() - 5000,) * 2)
    other = leave(store, "mine", 9000)
    store.prune(Retention())
    assert not any(path.exists() for path in old)
    assert os.listdir(foreign) == ["mine"], "a file of others stays, and its folder"
    assert other.exists()
    assert all(path.exists() for path in recent)
    assert (writer.path / "0.jsonl").exists(), "its agent runs"
    writer.close()


def test_a_clock_that_is_set_back_changes_no_order(store: Store) -> None:
    writer = HistoryWriter(store.dest, max_bytes=1500)
    order = [100, 101, 102, 40, 41, 42, 103, 104, 105, 50, 51, 52]
    for second in order:
        writer.append("x", (1,), [at(second)])
    found = find(store.dest, [1])
    assert found is not None
    seconds = [(sample.time_ns - START) // NS for sample in found.samples]
    assert len(seconds) > 4
    assert seconds == order[-len(seconds) :]
    writer.close()


def test_pids_of_another_namespace_or_boot_are_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = HistoryWriter(store.dest)
    writer.append("x", (1,), [at(0)])
    assert find(store.dest, [1]) is not None
    with monkeypatch.context() as patch:
        patch.setattr(host, "pid_namespace", lambda: 1)
        assert find(store.dest, [1]) is None
    writer.close()


def test_a_disk_that_refuses_is_one_error_and_tears_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = HistoryWriter(store.dest)
    writer.append("x", (1,), [at(0)])
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StallscopeError, match="No space left"):
            writer.append("x", (1,), [at(1)])
    writer.append("x", (1,), [at(2)])
    found = find(store.dest, [1])
    assert found is not None
    assert (found.samples, found.wrong) == ((at(0), at(2)), 0)
    writer.close()

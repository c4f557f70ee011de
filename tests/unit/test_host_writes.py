# SPDX-License-Identifier: Apache-2.0
"""What processes and devices have written, from a made /proc; and a whole measurement of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors import storage
from stallscope.collectors.host import storagewrites
from stallscope.collectors.host.writes import device_sources, host_writes, process_io
from stallscope.collectors.processes import ProcessInfo, Server
from stallscope.model.storage import ProcessIo, StorageLine
from stallscope.model.storagewrites import DiskRow, HostWrites
from tests.unit import writesfacts

IO = (
    "rchar: 9\nwchar: 7\nsyscr: 1\nsyscw: 3\nread_bytes: 0\nwrite_bytes: {}\n"
    "cancelled_write_bytes: 5\n"
)


def process(proc: Path, pid: int, written: int | None, start: int = 50) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    fields = ["S", "1", *["0"] * 17, str(start), *["0"] * 30]
    (folder / "stat").write_text(f"{pid} (a b) c) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(b"x\0")
    if written is not None:
        (folder / "io").write_text(IO.format(written))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, 10, 4096)
    process(tmp_path, 11, 100, start=7)
    process(tmp_path, 12, None)
    (tmp_path / "diskstats").write_text(
        " 254       0 vda 1 2 3 4 50 6 70 8 9 10 11 0 0 0 0 33 44\n"
        "   8      16 old 1 2 3 4\n"
        "   8      17 sd\x1b[1m 1 2 3 4 5 6 7 8 9 10 11\n"
        "   x      17 sdx 1 2 3 4 5 6 7 8 9 10 11\n"
    )
    return tmp_path


def test_all_of_it(proc: Path) -> None:
    found = host_writes([10, 999], proc)
    assert found.io == {10: ProcessIo(7, 3, 4096, 5)}
    assert found.others == {(11, 7): 100}
    assert found.hidden == 1
    assert found.disks == {
        "254:0": DiskRow("vda", 70 * 512, 50, 33),
        "8:17": DiskRow("sd\x1b[1m", 7 * 512, 5, None),
    }


def test_nothing_is_there(tmp_path: Path) -> None:
    assert host_writes([10], tmp_path) == HostWrites({}, {}, {}, 0)


@pytest.mark.parametrize("text", ["", "write_bytes: 5\n", IO.format("many"), "\x00" * 100])
def test_a_damaged_file_is_unknown(proc: Path, text: str) -> None:
    (proc / "10" / "io").write_text(text)
    assert process_io(10, proc) is None


def test_the_device_of_a_file_system_without_one(proc: Path) -> None:
    (proc / "10" / "mountinfo").write_text(
        "30 1 0:35 / /data rw - btrfs /dev/loop7 rw\n31 1 0:36 / /mem rw - tmpfs tmpfs rw\n"
    )
    devices = ("0:35", "0:36", "254:0", "hostile", "0:")
    assert device_sources(10, devices, proc) == {"0:35": "loop7"}


MAIN = ProcessInfo(77, 1, "mysqld", "S", 5, False, "/usr/sbin/mysqld", (1, 2), ("mysqld",))


def interval(seconds: float, *, pid: int = 77, final: bool = False) -> StorageLine:
    files = (writesfacts.file("/d/a.ibd", "data", int(seconds) * 1000),)
    line = writesfacts.line(*files if seconds else (), pid=pid)
    return msgspec.structs.replace(line, seconds=seconds, final=final)


def test_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[storage.Options] = []
    calls: list[str] = []

    def watch(pids: tuple[int, ...], options: storage.Options) -> Iterator[StorageLine]:
        assert pids == (77, 78)
        asked.append(options)
        yield interval(0)
        assert calls == []
        yield interval(0, pid=78)
        yield interval(5)
        assert calls == ["first"]
        yield interval(5, pid=78, final=True)
        yield interval(10, final=True)

    monkeypatch.setattr(storage, "watch", watch)
    found = storagewrites.measure(
        Server(MAIN, (77, 78), left_out=3),
        600.0,
        first=lambda: calls.append("first"),
        last=lambda: calls.append("last"),
    )
    assert calls == ["first", "last"]
    assert asked[0].interval == 10.0
    assert [line.pid for line in found.lines] == [78, 77]
    # 78 ended after 5 s: it keeps what it had.
    assert found.series == ((0.0, {}), (5.0, {"data": 10_000}), (10.0, {"data": 15_000}))
    assert found.notes == ("3 processes beyond the first 2 are missing",)


def test_a_probe_that_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(pids: tuple[int, ...], options: storage.Options) -> Iterator[StorageLine]:
        yield from ()

    monkeypatch.setattr(storage, "watch", watch)
    with pytest.raises(StallscopeError, match="before it counted anything"):
        storagewrites.measure(Server(MAIN, (77,)), 1.0)

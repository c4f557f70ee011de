# SPDX-License-Identifier: Apache-2.0
"""Undo records: written whole, read as input that can be damaged."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.base import host
from stallscope.collectors import processes
from stallscope.collectors.poke import poking, records
from stallscope.collectors.poke.poking import PokeError
from stallscope.collectors.poke.records import RecordError
from stallscope.model.pokes import FileChange, Record

__all__: list[str] = []

ID = "20260102T030405-a1b2c3"


def record(**changes: object) -> Record:
    value = Record(
        schema="stallscope.poke-record/1",
        id=ID,
        created_ns=1_700_000_000_000_000_000,
        name="linear-read-ahead",
        server="MySQL 5.5.9",
        pid=4711,
        pid_namespace=host.pid_namespace(),
        start_time=1,
        identity=f"1:2:3:{'a' * 64}",
        boot_id=host.boot_id(),
        exe="/usr/sbin/mysqld",
        build="sha256 00",
        uid=0,
        symbol="word",
        address=4096,
        size=8,
        old=0,
        new=1,
    )
    return msgspec.structs.replace(value, **changes)


def created(folder: Path, **changes: object) -> Path:
    with records.folder_lock(folder):
        return records.create(folder, record(**changes))


def test_written_and_read(tmp_path: Path) -> None:
    path = created(tmp_path / "r")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    records.append(path, "ended", "why")
    stored = records.read(path)
    assert stored.record == record()
    assert [(one.event, one.by, one.detail) for one in stored.events] == [
        ("ended", "command", "why")
    ]
    assert stored.record.change == ["--word", "1000:8:0:1"]
    with pytest.raises(RecordError, match="exists"):
        created(tmp_path / "r")


def test_files_as_the_probe_takes_them() -> None:
    files = (FileChange(3, 5, 7, "/d/ib_logfile0"), FileChange(4, 5, 8, "/d/ib_logfile1"))
    assert record(files=files).change == ["--file", "3:5:7", "--file", "4:5:8"]


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = created(tmp_path / "r")
    with path.open("ab") as file:
        file.write(b'{"event":"written","at_ns":1}\n{"event":"und')
    stored = records.read(path)
    assert ([one.event for one in stored.events], stored.damaged) == (["written"], 1)
    assert stored.end is None


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "20260102T030405-ffffff"},
        {"pid": 0},
        {"identity": "1:2:3:--do"},
        {"size": 3},
        {"address": None},
        {"files": (FileChange(1, 2, 3, "x"),)},
        {"schema": "other/1"},
        {"new": -1},
        {"name": "x" * 300},
    ],
)
def test_records_that_are_none(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / f"{ID}.poke"
    path.write_bytes(msgspec.json.encode(record(**changes)) + b"\n")
    path.chmod(0o600)
    with pytest.raises(RecordError):
        records.read(path)
    found, problems = records.listed(tmp_path)
    assert (found, len(problems)) == ([], 1)


def test_files_that_are_not_ours_alone(tmp_path: Path) -> None:
    path = created(tmp_path / "r")
    path.chmod(0o640)
    with pytest.raises(RecordError, match="not a file of this user alone"):
        records.read(path)
    path.chmod(0o600)
    other = tmp_path / "r" / "20260102T030405-ffffff.poke"
    other.symlink_to(path)
    with pytest.raises(RecordError):
        records.read(other)
    other.unlink()
    os.link(path, other)
    with pytest.raises(RecordError, match="not a file of this user alone"):
        records.read(path)
    other.unlink()
    os.mkfifo(other, 0o600)
    with pytest.raises(RecordError):
        records.read(other)


def test_a_folder_of_others(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(RecordError, match="others can write to it"), records.folder_lock(folder):
        pass


@pytest.mark.parametrize("word", ["../x", "", "x" * 5000, f"{ID}/..", f"{ID}\n"])
def test_ids_that_are_none(tmp_path: Path, word: str) -> None:
    with pytest.raises(RecordError, match="is not the id of a poke"):
        poking.undo(word, tmp_path)


def test_undo_of_what_is_over(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"no poke {ID} in"):
        poking.undo(ID, tmp_path)
    path = created(tmp_path / "r")
    with pytest.raises(PokeError, match="has ended or was restarted"):
        poking.undo(ID, tmp_path / "r")
    assert [one.event for one in records.read(path).events] == ["ended"]
    with pytest.raises(PokeError, match="has ended: there is nothing to undo"):
        poking.undo(ID, tmp_path / "r")


def test_records_of_one_second_are_oldest_first(tmp_path: Path) -> None:
    first, second = f"{ID[:-6]}ffffff", f"{ID[:-6]}000000"
    created(tmp_path / "r", id=second, created_ns=2)
    created(tmp_path / "r", id=first, created_ns=1)
    assert [one.record.id for one in records.listed(tmp_path / "r")[0]] == [first, second]


def test_of_another_boot(tmp_path: Path) -> None:
    own = processes.read(os.getpid())
    assert own is not None
    created(tmp_path / "r", pid=own.pid, start_time=own.start_time, boot_id="another")
    (state,) = poking.states(tmp_path / "r")[0]
    assert state.life == "ended"


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage(tmp_path: Path, data: st.DataObject) -> None:
    line = msgspec.json.encode(record()) + b'\n{"event":"written","at_ns":1,"by":"command"}\n'
    text = bytearray(line)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    path = tmp_path / f"{ID}.poke"
    path.write_bytes(text)
    path.chmod(0o600)
    try:
        stored = records.read(path)
    except RecordError:
        return
    # What it hands to the probe are numbers, whatever was damaged.
    assert all(set(word) <= set("0123456789abcdef:-word") for word in stored.record.change)

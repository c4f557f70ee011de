# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.errors import StallscopeError
from stallscope.model import capturefile, captureformat
from stallscope.model.capture import Capture, Frame, LockKind
from tests.unit.captures import convoy


def lines_of(capture: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capturefile.dumps(capture).splitlines()]


def text_of(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def changed(kind: str, /, **fields: Any) -> bytes:
    """Return a good file with fields of its first record of this type replaced."""
    records = lines_of(convoy())
    next(record for record in records if record["type"] == kind).update(fields)
    return text_of(records)


def test_what_is_written_is_what_is_read() -> None:
    capture = convoy()
    again = capturefile.loads(capturefile.dumps(capture), "x")
    assert msgspec.structs.replace(again, path=None) == capture


def test_threads_share_their_frames() -> None:
    capture = capturefile.loads(capturefile.dumps(convoy(3)), "x")
    assert capture.threads[1].frames is capture.threads[3].frames


def test_records_are_written_before_they_are_referred_to() -> None:
    kinds = [record["type"] for record in lines_of(convoy())]
    assert kinds[0] == "capture"
    assert kinds[-1] == "end"
    order = "capture process module frame stack lock thread release note trigger end"
    assert list(dict.fromkeys(kinds)) == order.split()


def test_the_time_is_rfc_3339_in_utc() -> None:
    assert lines_of(convoy())[0]["time"] == "2025-11-21T08:46:36.123456Z"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_file_is_private_and_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    before = os.umask(0)
    try:
        capturefile.write(convoy(), path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert capturefile.read(path).path == str(path)
    assert path.read_bytes().startswith(capturefile.ZSTD_MAGIC) == name.endswith(".zst")


def test_compression_is_found_by_magic_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "plain-name"
    path.write_bytes(zstd.compress(capturefile.dumps(convoy())))
    assert len(capturefile.read(path).threads) == 5


PACKED = zstd.compress(capturefile.dumps(convoy()))
HUGE_WINDOW = zstd.compress(b"x" * 100, options={int(zstd.CompressionParameter.window_log): 31})
# Small input is given a small window whatever was asked for: set the descriptor by hand.
HUGE_WINDOW = HUGE_WINDOW[:4] + bytes([HUGE_WINDOW[4] & ~0x20, 0xF8]) + HUGE_WINDOW[5:]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (capturefile.dumps(convoy())[:50], "not a capture of stallscope"),
        (capturefile.dumps(convoy())[:-50], "torn"),
        (text_of(lines_of(convoy())[:-1]), "no end record"),
        (PACKED[:-10], "torn"),
        (PACKED[:4] + b"\xff" * 26 + PACKED[30:], "damaged|torn"),
        (PACKED + PACKED, "one frame"),
        (HUGE_WINDOW, "damaged"),
        (b"\n\n", "empty"),
        (changed("capture", schema="stallscope.capture/3"), "cannot be read, only"),
        (changed("capture", schema="stallscope.capture/1.1"), "cannot be read, only"),
    ],
)
def test_what_is_no_whole_capture_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(capturefile.CaptureFileError, match=said):
        capturefile.loads(data, "x")


def test_zstd_bomb_is_refused_without_being_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturefile, "MAX_BYTES", 1 << 20)
    bomb = zstd.compress(b" " * (64 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(capturefile.CaptureFileError, match="decompresses to more"):
        capturefile.loads(bomb, "x")


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n",
        b"{}\n",
        b"[1]\n",
        b"\x7fELF\x02\x01\x01" + b"\0" * 100,
        b'{"schema":"other/1","type":"capture"}\n',
        b'{"type":"thread","schema":"stallscope.capture/1"}\n',
        b"\xff\xfe\x00{\n",
        b"[" * 100_000,
        b'{"schema":' + b"[" * 100_000,
    ],
)
def test_foreign_file_is_refused(data: bytes) -> None:
    with pytest.raises(capturefile.CaptureFileError, match="not a capture of stallscope"):
        capturefile.loads(data, "x")


def test_unknown_records_and_fields_are_ignored() -> None:
    records = lines_of(convoy())
    records[0]["weather"] = {"sun": [1]}
    records.insert(2, {"type": "sql", "text": "select 1"})
    capture = capturefile.loads(text_of(records), "x")
    assert msgspec.structs.replace(capture, path=None) == convoy()


def test_unknown_kind_of_lock_is_unknown() -> None:
    assert capturefile.loads(changed("lock", kind="spin"), "x").locks[0].kind is LockKind.UNKNOWN


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed("stack", frames=[0, 99]), "frame 99"),
        (changed("stack", frames=[-1]), "frames"),
        (changed("frame", module=4), "module 4"),
        (changed("frame", pc="0xG"), "pc"),
        (changed("frame", pc=12), "pc"),
        (changed("frame", pc="0x" + "f" * 17), "pc"),
        (changed("frame", id=7), "id 7"),
        (changed("module", process=1), "process 1"),
        (changed("thread", stack=12), "stack 12"),
        (changed("thread", lock=3), "lock 3"),
        (changed("thread", process=3), "process 3"),
        (changed("thread", label="certain"), "certain"),
        (changed("thread", tid=-1), "tid"),
        (changed("thread", tid=2**70), "tid"),
        (changed("thread", count=0), "count"),
        (changed("thread", state=""), "state"),
        (changed("lock", address=None), "address"),
        (changed("process", pid=10**30), "pid"),
        (changed("process", pid="1"), "pid"),
        (changed("release", stack=12), "stack 12"),
        (changed("release", lock=3), "lock 3"),
        (changed("release", process=3), "process 3"),
        (changed("release", tid=None), "tid"),
        (changed("release", count=0), "count"),
        (changed("release", ago_ns=-1), "ago_ns"),
        (changed("release", waited_ns=2**70), "waited_ns"),
        (changed("end", threads=6), "counts 6 threads"),
        (changed("note", message=None), "message"),
        (text_of([*lines_of(convoy()), {"type": "note"}]), "after the end"),
        (text_of([lines_of(convoy())[0], *lines_of(convoy())]), "second capture"),
    ],
)
def test_damage_is_named_with_its_line(data: bytes, message: str) -> None:
    with pytest.raises(capturefile.CaptureFileError, match=message) as error:
        capturefile.loads(data, "the-file")
    assert "the-file: line " in str(error.value)


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    data = capturefile.dumps(convoy())
    for name, value in (
        ("MAX_LINE", 200),
        ("MAX_RECORDS", 5),
        ("MAX_STACK", 2),
        ("MAX_STACKED", 3),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(capturefile, name, value)
            with pytest.raises(capturefile.CaptureFileError):
                capturefile.loads(data, "x")


def test_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturefile, "MAX_BYTES", 10)
    path = tmp_path / "a"
    path.write_bytes(b"x" * 11)
    for large in (path, Path("/dev/zero")):
        with pytest.raises(StallscopeError, match="larger"):
            capturefile.read(large)


def test_unreadable_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StallscopeError, match="cannot read"):
            capturefile.read(path)


def test_trigger_survives_and_there_is_one_at_most() -> None:
    records = lines_of(convoy())
    assert capturefile.loads(text_of(records), "x").trigger == convoy().trigger
    (again,) = [record for record in records if record["type"] == "trigger"]
    with pytest.raises(capturefile.CaptureFileError, match="second trigger"):
        capturefile.loads(text_of([*records[:-1], again, records[-1]]), "x")
    without = [record for record in records if record["type"] != "trigger"]
    assert capturefile.loads(text_of(without), "x").trigger is None


def test_imported_capture_keeps_its_origin() -> None:
    capture = Capture(backend="gdb", processes=(), threads=(), path="dump.txt")
    records = lines_of(capture)
    assert records[0]["origin"] == "dump.txt"
    assert capturefile.loads(text_of(records), "x").backend == "gdb"


def test_names_that_repeat_much_are_written_once() -> None:
    """Twice a name of 8 KB, of which the second is of another function."""
    name = "n" * 8000
    frames = tuple(
        Frame(symbol=name, linkage=f"_Z{name}", pc=pc, symbol_offset=pc) for pc in range(1, 1001)
    )
    other = Frame(symbol=name, pc=5000)
    thread = msgspec.structs.replace(convoy().threads[0], frames=(*frames, other), lock=None)
    capture = msgspec.structs.replace(convoy(), threads=(thread,), locks=())
    records = lines_of(capture)
    data = capturefile.dumps(capture)
    assert records[0]["schema"] == "stallscope.capture/2"
    assert len(data) < 1_000_000
    assert capturefile.loads(data, "x").threads[0].frames == thread.frames


def test_names_are_those_of_an_earlier_frame_alone() -> None:
    records = lines_of(convoy())
    at = next(i for i, record in enumerate(records) if record["type"] == "frame")
    records[at]["same_name"] = 0
    with pytest.raises(capturefile.CaptureFileError, match="damaged"):
        capturefile.loads(text_of(records), "x")


def test_the_schema_file_is_what_the_reader_insists_on() -> None:
    path = Path(__file__).parents[2] / "docs" / "capture-format.schema.json"
    text = json.dumps(captureformat.json_schema(), indent=1, sort_keys=True) + "\n"
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


GOOD = capturefile.dumps(convoy())
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("0xffff"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def read_or_refused(data: bytes) -> Capture | None:
    try:
        return capturefile.loads(data, "fuzz")
    except capturefile.CaptureFileError as error:
        message = str(error)
    assert message.startswith("fuzz: ")
    return None


@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=8), st.integers(0, 40))
def test_any_bytes_in_the_place_of_others(at: int, new: bytes, old: int) -> None:
    read_or_refused(GOOD[:at] + new + GOOD[at + old :])


@given(st.data())
def test_any_value_in_any_field(data: st.DataObject) -> None:
    records = lines_of(convoy())
    record = data.draw(st.sampled_from(records))
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(JSON)
    capture = read_or_refused(text_of(records))
    if capture is not None:
        again = capturefile.loads(capturefile.dumps(capture), "again")
        assert (again.threads, again.releases) == (capture.threads, capture.releases)

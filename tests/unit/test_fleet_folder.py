# SPDX-License-Identifier: Apache-2.0
"""A folder as destination: whole files or none, hostile files, retention."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.sending import SendError
from stallscope.fleet.batch import MAX_PACKED, Batch, make
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines import folderfiles
from stallscope.fleet.engines.folder import FolderDestination
from stallscope.fleet.engines.folderfiles import Entry, Lines
from stallscope.fleet.engines.folderpruning import prune
from stallscope.fleet.tables import AGENTS, INCIDENTS, STACKS, TABLES, WAITS, Row
from stallscope.store.appended import frames, pack
from tests.support.filesystems import mounted
from tests.support.fleet.anyrows import DAY, any_row, plain, row

DAY_MS = 86_400_000
NOON_MS = 1_795_953_600_000
ENTRY = Entry(DAY, Path("x.jsonl.zst"))


def files_of(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def three_tables() -> Batch:
    return make(
        [
            row(INCIDENTS.row, uid="a", start_ms=1),
            row(INCIDENTS.row, uid="b", start_ms=2, day="2026-11-30"),
            row(STACKS.row, hash="ff"),
            row(AGENTS.row, host="h"),
        ]
    )


def test_a_batch_is_a_file_for_each_table_and_day(tmp_path: Path) -> None:
    batch = three_tables()
    FolderDestination(tmp_path).send(batch)
    name = f"{batch.id}.jsonl.zst"
    assert files_of(tmp_path) == [
        Path("agents", f"day={DAY}", name),
        Path("incidents", f"day={DAY}", name),
        Path("incidents", "day=2026-11-30", name),
        Path("stacks", f"day={DAY}", name),
    ]
    content, torn = frames((tmp_path / "incidents" / f"day={DAY}" / name).read_bytes(), 1 << 20)
    assert torn is None
    assert content == batch.lines["incidents"][0] + b"\n"


def test_the_same_batch_again_writes_nothing(tmp_path: Path) -> None:
    destination, batch = FolderDestination(tmp_path), three_tables()
    destination.send(batch)
    before = {path: (tmp_path / path).stat().st_ino for path in files_of(tmp_path)}
    destination.send(batch)
    assert {path: (tmp_path / path).stat().st_ino for path in files_of(tmp_path)} == before


def test_files_obey_the_umask_and_are_nobodys_but_the_groups(tmp_path: Path) -> None:
    for mask, mode in ((0o022, 0o640), (0o077, 0o600)):
        folder = tmp_path / f"{mask:o}"
        folder.mkdir()
        old = os.umask(mask)
        try:
            FolderDestination(folder).send(three_tables())
        finally:
            os.umask(old)
        assert {(folder / path).stat().st_mode & 0o777 for path in files_of(folder)} == {mode}


@pytest.mark.parametrize("step", range(1, 9))
def test_what_was_interrupted_is_whole_or_absent_and_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The power goes at the step-th call that changes the disk."""
    left = step

    class Off(BaseException):
        pass

    def counted(real: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Off
            return real(*args, **given)

        return call

    batch = three_tables()
    with monkeypatch.context() as patch:
        for name in ("fsync", "link", "mkdir"):
            patch.setattr(os, name, counted(getattr(os, name)))
        with pytest.raises(Off):
            FolderDestination(tmp_path).send(batch)
    for path in files_of(tmp_path):
        if not path.name.startswith("."):
            assert frames((tmp_path / path).read_bytes(), 1 << 20)[1] is None
    FolderDestination(tmp_path).send(batch)
    assert len([path for path in files_of(tmp_path) if not path.name.startswith(".")]) == 4


def test_two_that_send_the_same_batch_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = three_tables()
    write = atomicfile.write

    def late(path: Path, chunks: Any, **given: Any) -> None:
        monkeypatch.setattr(atomicfile, "write", write)
        FolderDestination(tmp_path).send(batch)
        write(path, chunks, **given)

    monkeypatch.setattr(atomicfile, "write", late)
    FolderDestination(tmp_path).send(batch)
    assert len(files_of(tmp_path)) == 4


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(SendError, match="gone: No such file or directory; create the folder") as e:
        FolderDestination(tmp_path / "gone").send(three_tables())
    assert not e.value.refused
    assert e.value.after > 0
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (28, "No space left on device; free space"),
        (30, "Read-only file system; mount it for writing"),
        (13, "Permission denied; let this user write there"),
        (122, "Disk quota exceeded; raise the quota"),
        (5, "Input/output error; look at the folder"),
    ],
)
def test_errors_of_the_disk_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(SendError, match=f"cannot write to {tmp_path}.*{said}") as error:
        FolderDestination(tmp_path).send(three_tables())
    assert not error.value.refused
    assert not [path for path in files_of(tmp_path) if path.suffix == ".zst"]


@pytest.mark.needs("namespaces")
def test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path) as disk:
        folder = disk / "fleet"
        folder.mkdir()
        filler = disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(disk).free - (1 << 20)))
        with pytest.raises(SendError, match="would have 0 MiB free, less than 100 MiB; free space"):
            FolderDestination(folder).send(three_tables())
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        assert shutil.disk_usage(disk).free == 0
        with pytest.raises(SendError, match="No space left on device; free space"):
            FolderDestination(folder, min_free=-(1 << 40)).send(three_tables())
        assert files_of(folder) == []
        filler.unlink()
        FolderDestination(folder).send(three_tables())
        assert len(files_of(folder)) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "a row of incidents"),
        (b'{"day": "2026-02-30"}', "no day"),
        (b'{"day": "../../etc"}', "no day"),
        (b'{"day": "2026-11-29", "uid": 1}', "line 1 is damaged"),
        (b'{"day": "2026-11-29"}', "no start_ms"),
    ],
)
def test_rows_that_nobody_could_read_are_refused(tmp_path: Path, line: bytes, said: str) -> None:
    with pytest.raises(SendError, match=said) as error:
        FolderDestination(tmp_path).send(Batch({"incidents": (line,)}))
    assert error.value.refused
    assert files_of(tmp_path) == []


def test_a_batch_that_does_not_pack_is_refused(tmp_path: Path) -> None:
    size = 4 << 20
    rows = [row(STACKS.row, hash=str(n), frames=(os.urandom(size).hex()[:size],)) for n in range(9)]
    with pytest.raises(SendError, match="more than 16 MiB") as error:
        FolderDestination(tmp_path).send(make(rows))
    assert error.value.refused
    assert files_of(tmp_path) == []


def read(tmp_path: Path, data: bytes, name: str = "incidents") -> list[Any]:
    path = tmp_path / "rows.jsonl.zst"
    path.write_bytes(data)
    plain_lines = folderfiles.lines_of(Entry(DAY, path), Lines(TABLES[name]))
    return [json.loads(line) for line in plain_lines.splitlines()]


def test_torn_at_every_byte(tmp_path: Path) -> None:
    rows = [row(INCIDENTS.row, uid=str(n), start_ms=n) for n in range(5)]
    data = pack(make(rows).body("incidents"))
    assert read(tmp_path, data) == [plain(one) for one in rows]
    for cut in range(len(data)):
        with pytest.raises(StallscopeError, match="empty" if cut == 0 else "damaged"):
            read(tmp_path, data[:cut])
    for extra in (b"\0", b"\x28\xb5\x2f\xfd", data[:-1]):
        with pytest.raises(StallscopeError, match="damaged"):
            read(tmp_path, data + extra)


@pytest.mark.large
def test_changed_in_every_byte(tmp_path: Path) -> None:
    rows = [row(INCIDENTS.row, uid=str(n), start_ms=n) for n in range(3)]
    data = pack(make(rows).body("incidents"))
    refused = 0
    for at in range(len(data)):
        for flip in (1, 0x10, 0x80):
            other = bytearray(data)
            other[at] ^= flip
            try:
                assert read(tmp_path, bytes(other)) == [plain(one) for one in rows]
            except StallscopeError:
                refused += 1
    assert refused > len(data)


def test_a_bomb_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(StallscopeError, match="unpacks to more than"):
        read(tmp_path, pack(bytes(200 << 20)))
    with pytest.raises(StallscopeError, match="longer than 8 MiB"):
        read(tmp_path, pack(b" " * (9 << 20)))
    with pytest.raises(StallscopeError, match="longer than 8 MiB"):
        read(tmp_path, pack(b'{"uid": "' + b"\x7f" * (8 << 20) + b'"}'))


def test_what_is_no_regular_file_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_PACKED + 1)
    for name, said in (
        ("fifo", "no regular file"),
        ("link", "a symbolic link"),
        ("folder", "no regular file"),
        ("large", "larger than 16 MiB"),
    ):
        with pytest.raises(StallscopeError, match=said):
            folderfiles.lines_of(Entry(DAY, tmp_path / name), Lines(INCIDENTS))
    with pytest.raises(FileNotFoundError):
        folderfiles.lines_of(Entry(DAY, tmp_path / "gone"), Lines(INCIDENTS))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"uid": "x", "start_ms": 2**63}, "start_ms"),
        ({"uid": "x", "start_ms": "1"}, "start_ms"),
        ({"uid": None, "start_ms": 1}, "no uid"),
        ({"day": "2026-11-28"}, "a row of day 2026-11-28"),
        ({"is_open": 2}, "is_open"),
        ({"captures_time_ms": [1], "captures_reason": []}, "differ in length"),
        ({"triggers": "x"}, "triggers"),
        ([], "object"),
    ],
)
def test_rows_of_other_types_are_left_out(tmp_path: Path, line: Any, said: str) -> None:
    if isinstance(line, dict):
        line = {"day": DAY, "uid": "u", "start_ms": 5, "rev": 1, **line}
    with pytest.raises(StallscopeError, match=f"line 1 is damaged: .*{said}"):
        read(tmp_path, pack(json.dumps(line).encode()))


def test_rows_of_other_versions_are_read(tmp_path: Path) -> None:
    line = {"day": DAY, "rev": 1, "uid": "u", "start_ms": 5, "new": {"a": [1]}, "is_open": True}
    line |= {"captures_time_ms": [1, 2], "captures_new": ["x"], "share": None}
    (found,) = read(tmp_path, pack(json.dumps(line).encode()))
    missing = plain(row(INCIDENTS.row, uid="u", start_ms=5, rev=1))
    assert list(found) == list(missing)
    changed = {name: value for name, value in found.items() if value != missing[name]}
    assert changed == {
        "is_open": 1,
        "captures_time_ms": [1, 2],
        "captures_reason": ["", ""],
        "captures_trigger_name": ["", ""],
        "captures_detect_ms": [None, None],
        "captures_partial": [0, 0],
        "captures_analyzed": [0, 0],
        "captures_signature": ["", ""],
        "captures_sessions": ["", ""],
    }
    with pytest.raises(StallscopeError, match="unknown field"):
        Lines(INCIDENTS, strict=True).checked(json.dumps(line).encode(), DAY)


@settings(max_examples=20)
@given(st.data())
def test_any_row_comes_back(data: st.DataObject) -> None:
    for table in TABLES.values():
        rows = data.draw(st.lists(any_row(table.row), max_size=3))
        found = Lines(table).checked(make(rows).body(table.name), DAY)
        assert [json.loads(line) for line in found.splitlines()] == [plain(one) for one in rows]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)


@settings(max_examples=50)
@given(
    st.binary(max_size=200)
    | st.dictionaries(
        st.sampled_from([column.name for column in INCIDENTS.columns]), _JSON, max_size=9
    ).map(lambda one: json.dumps({"day": DAY, "uid": "", "start_ms": 1, "rev": 1, **one}).encode())
)
def test_any_text_is_read_or_refused_in_one_line(plain_line: bytes) -> None:
    try:
        found = Lines(INCIDENTS).checked(plain_line, DAY)
    except StallscopeError as error:
        found, said = b"", str(error)
    else:
        said = ""
    assert "\n" not in said
    assert len(said) < 200
    for line in found.splitlines():
        assert [*json.loads(line)] == [column.name for column in INCIDENTS.columns]


def test_days_and_what_is_strange_there(tmp_path: Path) -> None:
    table = tmp_path / "waits"
    for name in ("day=2026-11-29", "day=2026-11-30", "day=2026-02-30", "day=x", "other", ".day"):
        (table / name).mkdir(parents=True)
    (table / "day=2026-12-01").symlink_to(table / "day=2026-11-29")
    (table / "day=2026-12-02").write_text("a file")
    day = table / f"day={DAY}"
    for name in (
        "ok.jsonl.zst",
        "a.parquet",
        ".t.jsonl.zst.tmp",
        "it's.parquet",
        "x.txt",
        "*.jsonl.zst",
    ):
        (day / name).touch()
    first, second, link, file = folderfiles.days(table)
    assert [entry.path.name for entry in first.entries] == ["a.parquet", "ok.jsonl.zst"]
    assert {path.name: why for path, why in first.strange} == {
        "*.jsonl.zst": "no name that a fleet gives",
        "it's.parquet": "no name that a fleet gives",
        "x.txt": "no file of a fleet",
    }
    assert not second.entries
    assert not second.strange
    assert not link.entries
    assert not file.entries
    assert len(link.strange) == len(file.strange) == 1
    assert [one.day for one in folderfiles.days(table, DAY, DAY)] == [DAY]
    assert list(folderfiles.days(tmp_path / "gone")) == []


def test_a_listing_that_misses_a_new_parquet_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the new file nor those that it replaces are in the first listing."""
    (tmp_path / "waits" / f"day={DAY}").mkdir(parents=True)
    listings = [["b.jsonl.zst"], ["b.jsonl.zst", "n.parquet"], ["n.parquet"]]
    real = os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda of: listings.pop(0) if isinstance(of, int) else real(of)
    )
    (day,) = folderfiles.days(tmp_path / "waits")
    assert [entry.path.name for entry in day.entries] == ["b.jsonl.zst", "n.parquet"]


def send(folder: Path, *rows: Row) -> None:
    FolderDestination(folder).send(make(rows))


def test_prune_removes_old_days_only(tmp_path: Path) -> None:
    for day in ("2026-11-27", "2026-11-28", "2026-11-29"):
        for table in TABLES.values():
            send(tmp_path, row(table.row, day=day))
    send(tmp_path, row(STACKS.row, day="2024-01-01"), row(WAITS.row, day="2024-01-01"))
    done = prune(tmp_path, 1, now_ms=NOON_MS)
    assert done.removed == [
        "incidents/day=2026-11-27",
        "stacks/day=2024-01-01",
        "waits/day=2024-01-01",
        "waits/day=2026-11-27",
        "agents/day=2026-11-27",
    ]
    assert done.bytes > 0
    assert len(files_of(tmp_path)) == 4 * 2 + 1
    assert prune(tmp_path, now_ms=NOON_MS).removed == []
    assert prune(tmp_path, now_ms=NOON_MS + 40 * DAY_MS).removed == [
        "waits/day=2026-11-28",
        "waits/day=2026-11-29",
    ]


def test_prune_leaves_what_is_not_the_fleets(tmp_path: Path) -> None:
    old = tmp_path / "waits" / "day=2020-01-01"
    send(tmp_path, row(WAITS.row, day="2020-01-01"))
    (old / "notes.txt").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.parquet").touch()
    (tmp_path / "waits" / "day=2020-01-02").symlink_to(tmp_path / "mine")
    done = prune(tmp_path, now_ms=NOON_MS)
    assert files_of(tmp_path) == [Path("mine/a.parquet"), Path("waits/day=2020-01-01/notes.txt")]
    assert done.removed == []
    assert done.notes == [
        "waits/day=2020-01-01/notes.txt stays: no file of a fleet",
        "waits/day=2020-01-02 stays: it is no folder",
    ]


def test_prune_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"there is no folder .*gone"):
        prune(tmp_path / "gone", now_ms=NOON_MS)

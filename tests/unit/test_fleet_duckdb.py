# SPDX-License-Identifier: Apache-2.0
"""A folder as engine: the rows that count, hostile files, compaction that is killed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.base import atomicfile
from stallscope.fleet.address import Address
from stallscope.fleet.batch import make
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines import folderfiles, opening
from stallscope.fleet.engines.duckdbcompaction import compact
from stallscope.fleet.engines.duckdbengine import DuckDBEngine
from stallscope.fleet.engines.folder import FolderDestination
from stallscope.fleet.tables import INCIDENTS, PARTS, STACKS, TABLES, WAITS, CapturePart, Row
from stallscope.store import locking
from tests.support.chance import SEED
from tests.support.fleet.anyrows import DAY, any_row, best, row

DAY_MS = 86_400_000
DAY_START_MS = 1_795_910_400_000
KILLS = 20
_LOOP = (
    "import sys; from tests.unit import test_fleet_duckdb as t; t.compact_on_and_on(sys.argv[1])"
)

pytestmark = pytest.mark.large


def send(folder: Path, *rows: Row) -> None:
    FolderDestination(folder, min_free=0).send(make(rows))


def incident(number: int, rev: int = 1, **given: Any) -> Row:
    return row(INCIDENTS.row, uid=f"u{number}", start_ms=number, rev=rev, **given)


def shown(folder: Path, table: str = "incidents") -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return all rows of a table by key; none is there twice, nothing is left out."""
    engine = DuckDBEngine(folder)
    try:
        rows = engine.rows(f"SELECT * FROM {table}")
        assert list(engine.notes) == []
    finally:
        engine.close()
    found = {tuple(one[name] for name in TABLES[table].key): one for one in rows}
    assert len(found) == len(rows)
    return found


def ask(folder: Path, sql: str) -> tuple[list[dict[str, Any]], list[str]]:
    engine = DuckDBEngine(folder)
    try:
        return engine.rows(sql), list(engine.notes)
    finally:
        engine.close()


def uids(folder: Path) -> tuple[str, list[str]]:
    rows, notes = ask(folder, "SELECT uid FROM incidents ORDER BY uid")
    return " ".join(one["uid"] for one in rows), notes


@settings(max_examples=6)
@given(st.data())
def test_any_rows_come_back_equal(data: st.DataObject) -> None:
    """From lines, from a Parquet file, and from both."""
    rows = {
        name: data.draw(st.lists(any_row(table.row), min_size=1, max_size=4))
        for name, table in TABLES.items()
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for half in (slice(0, None, 2), slice(1, None, 2)):
            send(folder, *(one for of in rows.values() for one in of[half]))
            # Of the same key and revision any counts.
            unclear = {
                of: len({(key, one.rev) for one in found for key in [_key(one)]}) < len(found)
                for of, found in rows.items()
            }
            for of, found in rows.items():
                known = found[::2] if half.start == 0 else found
                if not unclear[of]:
                    assert shown(folder, of) == best(known)
            compact(folder)
            for of, found in rows.items():
                known = found[::2] if half.start == 0 else found
                if not unclear[of]:
                    assert shown(folder, of) == best(known)


def _key(one: Row) -> tuple[Any, ...]:
    table = next(table for table in TABLES.values() if table.row is type(one))
    return tuple(getattr(one, name) for name in table.key)


def test_an_empty_folder_answers(tmp_path: Path) -> None:
    for name in (*TABLES, *PARTS):
        assert ask(tmp_path, f"SELECT * FROM {name}") == ([], [])
    assert ask(tmp_path, "SELECT count(*) AS n FROM incidents") == ([{"n": 0}], [])


def test_the_address_opens_it(tmp_path: Path) -> None:
    opening.destination(Address(path=tmp_path)).send(make([incident(1)]))
    engine = opening.engine(Address(path=tmp_path))
    assert engine.shown == f"file://{tmp_path}"
    assert engine.rows("SELECT uid FROM incidents") == [{"uid": "u1"}]
    engine.close()
    engine.close()


def test_a_missing_folder_and_wrong_sql_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"there is no folder .*gone"):
        DuckDBEngine(tmp_path / "gone")
    for sql in ("SELECT no_such FROM incidents", "SELEC", "SELECT * FROM nothing"):
        with pytest.raises(EngineError) as error:
            ask(tmp_path, sql)
        assert "\n" not in str(error.value)


def test_a_backslash_in_the_path_is_refused(tmp_path: Path) -> None:
    """DuckDB takes it for a slash where it looks whether a path is allowed."""
    (tmp_path / "a\\b").mkdir()
    with pytest.raises(EngineError, match="has a"):
        DuckDBEngine(tmp_path / "a\\b")


def test_nothing_else_can_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for sql in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"SELECT * FROM read_text('{tmp_path}/fleet/../secret.csv')",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/out.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_csv('https://127.0.0.1:1/x.csv')",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
    ):
        with pytest.raises(EngineError):
            ask(tmp_path / "fleet", sql)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet", "secret.csv"]


def test_the_private_folder_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, private = tmp_path / "fleet", tmp_path / "private"
    fleet.mkdir()
    private.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    send(fleet, incident(1))
    compact(fleet)
    send(fleet, incident(2), incident(1, 5))
    before = len(os.listdir("/proc/self/fd"))
    assert uids(fleet) == ("u1 u2", [])
    assert list(private.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["it's; DROP", "a*b", "[x]", "späm", "{a,b}", "a?b", '"', "~"])
def test_names_of_the_folder_are_no_sql_and_no_pattern(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    send(folder, incident(1))
    compact(folder)
    send(folder, incident(2))
    assert uids(folder) == ("u1 u2", [])


def test_the_highest_revision_counts_wherever_it_is(tmp_path: Path) -> None:
    low, middle, high = (incident(1, rev, title=str(rev)) for rev in (1, 2, 3))
    for order in ((low, high, middle), (high, low, middle), (middle, low, high)):
        folder = tmp_path / "-".join(str(one.rev) for one in order)
        folder.mkdir()
        for number, one in enumerate(order, 1):
            send(folder, one, incident(7))
            assert shown(folder) == best([*order[:number], incident(7)])
            compact(folder)
            assert shown(folder) == best([*order[:number], incident(7)])


def test_a_stack_is_there_once_in_all_days(tmp_path: Path) -> None:
    for rev, day in ((1, "2026-11-27"), (3, "2026-11-28"), (2, "2026-11-29")):
        send(tmp_path, row(STACKS.row, hash="ff", day=day, rev=rev, frames=("a", str(rev))))
        assert len(shown(tmp_path, "stacks")) == 1
        compact(tmp_path)
    (found,) = shown(tmp_path, "stacks").values()
    assert found["frames"] == ["a", "3"]


def test_parts_are_tables(tmp_path: Path) -> None:
    part = CapturePart(7, "trigger", "t", None, True, False, "sig", "")
    send(tmp_path, incident(5, host="h", captures=(part, part)))
    rows, _ = ask(tmp_path, "SELECT * FROM captures")
    assert rows == 2 * [
        {"day": DAY, "uid": "u5", "host": "h", "start_ms": 5, "time_ms": 7, "reason": "trigger"}
        | {"trigger_name": "t", "detect_ms": None, "partial": 1, "analyzed": 0}
        | {"signature": "sig", "sessions": ""}
    ]


def test_only_the_days_asked_for_are_read(tmp_path: Path) -> None:
    days = ("2026-11-27", "2026-11-28", "2026-11-29", "2026-11-30")
    for number, day in enumerate(days):
        send(tmp_path, incident(number, day=day), row(STACKS.row, hash=str(number), day=day))
    for day in (days[0], days[3]):  # they would be named if they were read
        (tmp_path / "incidents" / f"day={day}" / "torn.jsonl.zst").touch()
    engine = DuckDBEngine(tmp_path)
    engine.restrict(DAY_START_MS - 1, DAY_START_MS)
    rows = engine.rows("SELECT uid FROM incidents ORDER BY uid")
    assert [one["uid"] for one in rows] == ["u1", "u2"]
    assert list(engine.notes) == []
    assert engine.rows("SELECT count(*) AS n FROM stacks") == [{"n": 4}]
    engine.restrict(DAY_START_MS, DAY_START_MS + DAY_MS)
    assert engine.rows("SELECT count(*) AS n FROM incidents") == [{"n": 2}]
    assert len(engine.notes) == 1
    engine.close()


def damage(day: Path) -> int:
    """Put all sorts of files beside those of the fleet; return how many."""
    whole = next(day.glob("*.jsonl.zst")).read_bytes()
    (day / "torn.jsonl.zst").write_bytes(whole[:-3])
    (day / "empty.jsonl.zst").touch()
    (day / "other.jsonl.zst").write_bytes(b"no zstd")
    (day / "torn.parquet").write_bytes(b"PAR1")
    (day / "text.parquet").write_bytes(b"x" * 500)
    (day / "liar.parquet").write_bytes(b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1")
    (day / "rubbish.parquet").write_bytes(b"PAR1" + b"\xa5" * 100 + b"\x50\0\0\0PAR1")
    (day / "link.parquet").symlink_to("/etc/passwd")
    os.mkfifo(day / "fifo.jsonl.zst")
    os.mkfifo(day / "fifo.parquet")
    (day / "x'); DROP VIEW incidents; --.parquet").write_bytes(b"")
    (day / "*.jsonl.zst").write_bytes(whole)
    (day / "README").write_text("hello")
    (day / "folder.parquet").mkdir()
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1 AS a) TO '{day}/foreign.parquet'")
        connection.execute(
            "COPY (SELECT 1 AS rev, '' AS day, [1] AS start_ms, 'x' AS uid)"
            f" TO '{day}/types.parquet'"
        )
    return 16


def test_what_is_damaged_or_foreign_is_left_out_and_named(tmp_path: Path) -> None:
    send(tmp_path, incident(1), incident(2))
    count = damage(tmp_path / "incidents" / f"day={DAY}")
    for number in (3, 4):
        found, notes = uids(tmp_path)
        assert found == " ".join(f"u{one}" for one in range(1, number))
        assert len(notes) == count
        assert all(note.startswith(f"incidents/day={DAY}/") for note in notes)
        assert all(" is left out: " in note and note.isprintable() for note in notes)
        assert len(compact(tmp_path).notes) == count
        assert uids(tmp_path) == (found, notes)
        send(tmp_path, incident(number))


def test_many_notes_are_counted(tmp_path: Path) -> None:
    send(tmp_path, incident(1))
    for number in range(50):
        (tmp_path / "incidents" / f"day={DAY}" / f"{number}.jsonl.zst").touch()
    _, notes = uids(tmp_path)
    assert len(notes) == 21
    assert notes[-1] == "30 more files are left out"


def compacted(folder: Path, rows: int) -> Path:
    send(folder, *(incident(n, title=f"title {n}", triggers=("a", "b")) for n in range(rows)))
    compact(folder)
    (found,) = (folder / "incidents" / f"day={DAY}").iterdir()
    return found


def test_a_parquet_file_torn_or_changed_anywhere(tmp_path: Path) -> None:
    """It never harms other files. What no check sees are other values."""
    chance = random.Random(SEED)
    path = compacted(tmp_path, 50)
    data = path.read_bytes()
    send(tmp_path, incident(1000))
    broken = 0
    for number in range(60):
        other = bytearray(data)
        if number % 2:
            del other[chance.randrange(len(data)) :]
        else:
            for _ in range(8):
                other[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        path.write_bytes(other)
        rows, notes = ask(tmp_path, "SELECT * FROM incidents")
        assert [one for one in rows if one["uid"] == "u1000"]
        assert (len(rows) == 1) == bool(notes)
        broken += bool(notes)
    assert broken >= 30


def test_pages_that_are_damaged_are_found_by_the_query_that_reads_them(tmp_path: Path) -> None:
    path = compacted(tmp_path, 3000)
    data = bytearray(path.read_bytes())
    data[4:-20_000] = bytes(len(data) - 20_004)  # the footer stays
    path.write_bytes(data)
    send(tmp_path, incident(5000))
    engine = DuckDBEngine(tmp_path)
    assert engine.rows("SELECT uid FROM incidents") == [{"uid": "u5000"}]
    (note,) = engine.notes
    assert f"{path.name} is left out: damaged" in note
    engine.close()
    assert compact(tmp_path).notes == [note]
    assert path.exists()
    assert uids(tmp_path) == ("u5000", [note])


def test_parquet_files_of_other_versions(tmp_path: Path) -> None:
    """An earlier one has fewer columns; a later one has more, and is not compacted: they would be
    lost."""
    part = CapturePart(7, "trigger", "t", None, True, False, "sig", "")
    send(tmp_path, incident(1, captures=(part, part)))
    compact(tmp_path)
    (path,) = (tmp_path / "incidents" / f"day={DAY}").iterdir()
    data = path.read_bytes()

    def rewritten(columns: str) -> None:
        shutil.copy(path, tmp_path / "old.parquet")
        with duckdb.connect() as connection:
            connection.execute(f"COPY (SELECT {columns} FROM '{tmp_path}/old.parquet') TO '{path}'")

    rewritten("* EXCLUDE (captures_sessions, captures_detect_ms, title, end_ms, triggers)")
    expected = next(iter(best([incident(1, captures=(part, part))]).values()))
    assert list(shown(tmp_path).values()) == [expected]
    send(tmp_path, incident(2))
    compact(tmp_path)
    assert shown(tmp_path) == best([incident(1, captures=(part, part)), incident(2)])

    path.write_bytes(data)
    rewritten("*, 5 AS later")
    send(tmp_path, incident(3))
    done = compact(tmp_path)
    assert [note.partition(": ")[2] for note in done.notes] == ["it has columns of a later version"]
    assert path.exists()
    assert uids(tmp_path) == ("u1 u2 u3", [])


def test_compaction_makes_one_file_of_each_table_and_day(tmp_path: Path) -> None:
    for number in range(6):
        send(tmp_path, incident(number), incident(number, 5), row(WAITS.row, minute_ms=number))
    send(tmp_path, incident(9, day="2026-11-30"))
    done = compact(tmp_path, until=DAY)
    assert (done.days, done.rows, done.files_before, done.notes) == (2, 12, 12, [])
    assert done.bytes_before > 0 < done.bytes_after
    names = [path.name for path in tmp_path.rglob("*.*") if path.is_file()]
    assert sorted(name.partition(".")[2] for name in names) == [
        "compact.lock",
        "jsonl.zst",
        "parquet",
        "parquet",
    ]
    assert compact(tmp_path, until=DAY).days == 0
    (path,) = (tmp_path / "incidents" / f"day={DAY}").iterdir()
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT uid, rev FROM '{path}'").fetchall()
    assert rows == [(f"u{number}", 5) for number in range(6)]


def test_leftovers_of_killed_writers_are_removed_when_they_are_old(tmp_path: Path) -> None:
    send(tmp_path, incident(1))
    day = tmp_path / "incidents" / f"day={DAY}"
    for name, age in ((".new.tmp", 60), (".old.tmp", 2 * 86_400)):
        (day / name).touch()
        os.utime(day / name, (time.time() - age,) * 2)
    compact(tmp_path)
    assert [path.name for path in day.glob(".*")] == [".new.tmp"]


def test_compaction_leaves_room_on_the_disk(tmp_path: Path) -> None:
    send(tmp_path, incident(1), incident(2))
    with pytest.raises(EngineError, match="MiB free; free space"):
        compact(tmp_path, min_free=1 << 60)
    assert [path.suffix for path in (tmp_path / "incidents" / f"day={DAY}").iterdir()] == [".zst"]
    assert uids(tmp_path) == ("u1 u2", [])


def test_the_second_compaction_waits_for_another_time(tmp_path: Path) -> None:
    compact(tmp_path)
    held = locking.take(tmp_path / ".compact.lock")
    with pytest.raises(EngineError, match=r"another compaction of .* runs"):
        compact(tmp_path)
    held.release()
    compact(tmp_path)


class Interrupted(BaseException):
    """The process is killed here."""


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    """Do something before the step-th call of a compaction that changes the folder."""
    left = step

    def counted(real: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                do()
            return real(*args, **given)

        return call

    for of, name in ((os, "link"), (Path, "unlink"), (atomicfile, "sync_folder")):
        monkeypatch.setattr(of, name, counted(getattr(of, name)))
    monkeypatch.setattr(atomicfile, "write", counted(atomicfile.write))


def filled(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = [incident(number, number % 3) for number in range(8)]
    send(folder, *rows)
    compact(folder)
    late = [incident(number, 2, title="late") for number in range(3)]
    new = [incident(number) for number in (20, 21)]
    send(folder, *late)
    send(folder, *new, *rows[:2])
    return best([*rows, *late, *new])


@pytest.mark.parametrize("step", range(1, 13))
def test_interrupted_at_each_step_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    expected = filled(tmp_path)

    def interrupt() -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        at_step(patch, step, interrupt)
        with pytest.raises(Interrupted):
            compact(tmp_path)
    assert shown(tmp_path) == expected
    compact(tmp_path)
    assert shown(tmp_path) == expected
    assert len(list((tmp_path / "incidents" / f"day={DAY}").glob("[!.]*"))) == 1


@pytest.mark.parametrize("step", range(1, 13))
def test_two_compactions_at_once_and_writers_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """On a file system without locks, at each step of the first."""
    rows = filled(tmp_path)
    done = []

    def no_locks(path: Path) -> locking.Held:
        raise OSError(errno.ENOLCK, "no locks")

    def another() -> None:
        send(tmp_path, incident(4, 9, title="latest"), incident(30))
        compact(tmp_path)
        done.append(1)

    with monkeypatch.context() as patch:
        patch.setattr(locking, "take", no_locks)
        at_step(patch, step, another)
        compact(tmp_path)
    expected = rows | best([incident(4, 9, title="latest"), incident(30)])
    assert done
    assert shown(tmp_path) == expected
    compact(tmp_path)
    assert shown(tmp_path) == expected


@pytest.mark.parametrize("reads", ["lines_of", "open_file", "check_parquet"])
def test_a_compaction_between_listing_and_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    expected = filled(tmp_path)
    real = getattr(folderfiles, reads)
    left = [1]

    def late(*args: Any) -> Any:
        answer = real(*args) if reads == "check_parquet" else None
        if left:
            left.pop()
            compact(tmp_path)
        return answer if reads == "check_parquet" else real(*args)

    monkeypatch.setattr(folderfiles, reads, late)
    assert shown(tmp_path) == expected
    assert not left


def test_a_compaction_between_two_questions(tmp_path: Path) -> None:
    expected = filled(tmp_path)
    engine = DuckDBEngine(tmp_path)
    for _ in range(2):
        rows = engine.rows("SELECT * FROM incidents")
        assert {(one["start_ms"], one["uid"]): one for one in rows} == expected
        compact(tmp_path)
    engine.close()


def test_files_that_go_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send(tmp_path, incident(1))

    def gone(*_: Any) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(folderfiles, "lines_of", gone)
    with pytest.raises(EngineError, match="ask again"):
        ask(tmp_path, "SELECT * FROM incidents")


def test_files_that_another_host_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", _stale)
    with pytest.raises(FileNotFoundError):
        folderfiles.open_file(tmp_path / "x.jsonl.zst", 100)


def _stale(*_: Any) -> int:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def compact_on_and_on(name: str) -> None:
    """Be killed in one of many compactions."""
    compact(Path(name))
    os.write(1, b"\n")
    while True:
        compact(Path(name))


def test_killed_at_any_moment_while_rows_come(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    rows: list[Row] = []
    number = 0
    folder, private = tmp_path / "fleet", tmp_path / "private"
    folder.mkdir()
    private.mkdir()
    argv = [sys.executable, "-P", "-c", _LOOP, str(folder)]
    env = {**os.environ, "TMPDIR": str(private)}
    for _ in range(KILLS):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"\n"
            end = time.monotonic() + chance.uniform(0, 0.4)
            while not rows or time.monotonic() < end:
                number += 1
                new = [
                    incident(number),
                    incident(chance.randrange(number), 1 + number, title=f"revision {number}"),
                ]
                send(folder, *new)
                rows += new
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
        assert shown(folder) == best(rows)
    compact(folder)
    assert shown(folder) == best(rows)
    assert len(list((folder / "incidents" / f"day={DAY}").glob("[!.]*"))) == 1

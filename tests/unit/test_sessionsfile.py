# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope import main
from stallscope.agent.verdict_process import VerdictRequest
from stallscope.agent.verdict_process.naming import name_capture
from stallscope.analyzers import catalog
from stallscope.model import capturefile, sessionsfile
from stallscope.model.capture import Capture, LockKind
from stallscope.model.incident import CaptureEntry
from stallscope.model.sessions import LockWait, Session, Sessions, annotate, redact
from stallscope.server.statements import normalize
from stallscope.store import Store, read_incident
from stallscope.store.retention import Retention
from tests.unit.captures import convoy
from tests.unit.storelife import incident

TIME_NS = convoy().time_ns
SESSIONS = Sessions(
    sessions=(
        Session(7, 11, user="app", database="shop", command="Query", statement="SELECT 'secret'"),
        Session(8, 12, command="Sleep"),
    ),
    waits=(LockWait(LockKind.METADATA, waiter=7, owner=8, name="shop.orders"),),
    notes=("the owners of row locks are not known",),
    pid=100,
)


def saved(folder: Path, name: str = "0001.jsonl.zst") -> Path:
    """Write a capture and its sessions; return the capture's path."""
    path = folder / name
    capturefile.write(convoy(), path)
    sessionsfile.write(convoy(), redact(SESSIONS, normalize), path)
    return path


def connections(capture: Capture) -> dict[int, tuple[int | None, str | None]]:
    return {t.tid: (t.connection, t.query) for t in capture.threads if t.connection is not None}


EXPECTED = {101: (7, "SELECT ?"), 102: (8, None)}


@pytest.mark.parametrize("name", ["0001.jsonl.zst", "a.jsonl", "b"])
def test_sessions_beside_a_capture_are_part_of_it(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, name)
    capture = capturefile.read(path)
    assert connections(capture) == EXPECTED
    assert [note.message for note in capture.notes[1:]] == list(SESSIONS.notes)
    assert not connections(capturefile.loads(path.read_bytes(), str(path)))
    beside = sessionsfile.path_of(path)
    assert beside.name == name.partition(".")[0] + ".sessions.json"
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    assert b"secret" not in beside.read_bytes()


def test_the_file_says_what_the_sessions_in_a_capture_would(tmp_path: Path) -> None:
    both = capturefile.read(saved(tmp_path))
    inside = tmp_path / "inside.jsonl"
    capturefile.write(annotate(convoy(), redact(SESSIONS, normalize)), inside)
    old = capturefile.read(inside)
    assert msgspec.structs.replace(old, path=None) == msgspec.structs.replace(both, path=None)


def test_a_capture_without_its_sessions_is_whole(tmp_path: Path) -> None:
    path = saved(tmp_path)
    moved = path.rename(tmp_path / "moved.jsonl.zst")
    assert msgspec.structs.replace(capturefile.read(moved), path=None) == convoy()


def test_a_statement_that_is_not_redacted_is_left_out() -> None:
    assert connections(annotate(convoy(), SESSIONS)) == {101: (7, None), 102: (8, None)}


def text(**changes: Any) -> bytes:
    value = {
        "schema": sessionsfile.SCHEMA,
        "capture_time_ns": TIME_NS,
        "sessions": {"sessions": [{"connection": 7, "os_tid": 11}]},
        **changes,
    }
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (text()[:-9], "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (text(schema="stallscope.sessions/2"), "this stallscope reads stallscope.sessions/1"),
        (text(capture_time_ns=1), "belongs to another capture"),
        (text(sessions={"sessions": [{"connection": -1}]}), "cannot be read"),
        (text(sessions={"sessions": [{"connection": 2**70}]}), "cannot be read"),
        (text(sessions={"sessions": [], "pid": 555}), "SQL answers from process 555"),
        (text(schema="\x1b[2J"), "x1b[2J"),
    ],
)
def test_what_cannot_be_used_is_a_note_and_the_capture_is_there(
    tmp_path: Path, data: bytes, said: str
) -> None:
    path = saved(tmp_path)
    sessionsfile.path_of(path).write_bytes(data)
    capture = capturefile.read(path)
    assert not connections(capture)
    assert said in capture.notes[-1].message
    assert capture.missing == list(convoy().notes)


def test_a_file_that_is_too_large_or_no_file_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sessionsfile, "MAX_BYTES", 100)
        assert "larger than" in capturefile.read(path).notes[-1].message
    beside = sessionsfile.path_of(path)
    beside.unlink()
    beside.symlink_to("/etc/passwd")
    assert str(beside) in capturefile.read(path).notes[-1].message
    beside.unlink()
    beside.mkdir()
    assert str(beside) in capturefile.read(path).notes[-1].message


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    path = saved(tmp_path)
    sessionsfile.path_of(path).write_bytes(text(weather="sun"))
    assert connections(capturefile.read(path)) == {101: (7, None)}


def test_naming_leaves_the_capture_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "0001.jsonl.zst"
    capturefile.write(convoy(), path)
    before = (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
    judged, _ = name_capture(VerdictRequest(str(path), SESSIONS), catalog.load([]))
    assert (judged.error, judged.sessions, judged.notes) == (None, None, SESSIONS.notes)
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) == before
    assert connections(capturefile.read(path)) == EXPECTED
    unknown = Sessions(sessions=SESSIONS.sessions, pid=100, reason="no answer since 1.0 s")
    judged, _ = name_capture(VerdictRequest(str(path), unknown), catalog.load([]))
    assert (judged.error, judged.sessions) == (None, "no answer since 1.0 s")
    assert connections(capturefile.read(path)) == {}


def test_a_verdict_does_not_need_the_file(tmp_path: Path) -> None:
    path = tmp_path / "0001.jsonl.zst"
    capturefile.write(convoy(), path)
    sessionsfile.path_of(path).mkdir()
    judged, _ = name_capture(VerdictRequest(str(path), SESSIONS), catalog.load([]))
    assert judged.verdict is not None
    assert judged.sessions is not None
    assert "it is a directory" in judged.sessions


def test_a_store_reads_counts_and_removes_both(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    sizes = []
    for number in (1, 2):
        with store.begin(incident(number)) as folder:
            entry = folder.add_capture(capturefile.dumps(convoy()), CaptureEntry("", 1, "trigger"))
            path = folder.path / entry.file
            sizes.append(sum(f.stat().st_blocks * 512 for f in path.parent.iterdir()))
            sessionsfile.write(convoy(), redact(SESSIONS, normalize), path)
            folder.finish()
    (read,) = read_incident(path.parent.parent).captures()
    assert read.capture is not None
    assert connections(read.capture) == EXPECTED
    beside = sessionsfile.path_of(path)
    summaries = store.listing().incidents
    assert [s.captures for s in summaries] == [1, 1]
    both = sum(f.stat().st_blocks * 512 for f in path.parent.iterdir())
    assert both > sizes[-1]
    rest = sum(f.stat().st_blocks * 512 for f in path.parent.parent.glob("*") if f.is_file())
    assert summaries[-1].bytes == both + rest
    beside.write_bytes(b"{")
    (read,) = read_incident(path.parent.parent).captures()
    assert read.capture is not None
    assert "sessions.json" in read.capture.notes[-1].message
    done = store.prune(Retention(count=1))
    assert done.removed == [summaries[0].id]
    assert not done.notes
    assert [path.name for path in store.incidents.iterdir()] == [summaries[1].id]


def test_analyze_takes_both_and_skips_the_file_in_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path)
    for what in (tmp_path, tmp_path / "0001.jsonl.zst"):
        code = main.main(["analyze", str(what), "--threads", "101"])
        out, err = capsys.readouterr()
        assert code == 3, err  # a note of the capture says that a thread is missing
        assert "the owners of row locks are not known [sessions]" in out
        assert "sessions.json" not in out + err

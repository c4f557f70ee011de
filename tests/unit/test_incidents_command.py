# SPDX-License-Identifier: Apache-2.0
"""`stallscope incidents` as its users see it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from stallscope.base import times
from stallscope.main import main
from stallscope.model.capture import Note
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry, Verdict
from stallscope.server.deadlocks import Deadlock, DeadlockLock, DeadlockTransaction
from stallscope.store import Store, layout, listing
from tests.unit.storelife import CAPTURE, START_NS, fill, incident, verdict
from tests.unit.storelife import sample as status_sample
from tests.unit.threadlines import FSYNC, IDLE, MUTEX, line, sample

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "incidents-schema.schema.json").read_text())

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command: code, output, errors."""

    def run_it(*args: str | Path) -> tuple[int, str, str]:
        code = main(["incidents", *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run_it


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store")
    fill(store, 1, lambda _: None)
    with store.begin(incident(2)) as folder:
        folder.finish(msgspec.structs.replace(folder.incident, end_ns=START_NS + 3 * 10**9))
    with store.begin(incident(3)) as folder:
        unknown = verdict(None)
        folder.update(msgspec.structs.replace(folder.incident, verdict=unknown))
    return store


def json_of(out: str) -> list[dict[str, Any]]:
    value = json.loads(out)
    jsonschema.validate(value, SCHEMA)
    incidents = value["incidents"]
    assert isinstance(incidents, list)
    return incidents


def test_the_list(run: Run, store: Store) -> None:
    code, out, err = run("--dest", store.dest)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("3 incidents, ")
    rows = lines[next(n for n, line in enumerate(lines) if line.startswith("ID")) + 1 :]
    assert [line.split()[0] for line in rows] == [incident(n).id for n in (1, 2, 3)]
    assert rows[0].split()[1:] == ["1", "s", "3", "metadata-lock", "0.93"]
    assert rows[1].endswith(" 0  -")
    assert "interrupted" in rows[2]
    assert rows[2].endswith("unknown stall 0.93")
    assert all(len(line) <= 80 for line in lines[1:])


def test_json(run: Run, store: Store) -> None:
    with store.begin(incident(4)):
        code, out, _ = run("--dest", store.dest, "--json")
    found = json_of(out)
    assert code == 0
    assert [one["verdict"] for one in found] == ["metadata-lock", None, None, None]
    assert [one["confidence"] for one in found] == [0.93, None, 0.93, None]
    assert [one["state"] for one in found] == ["ended", "ended", "interrupted", "ongoing"]
    assert [one["captures"] for one in found] == [3, 0, 0, 0]
    assert found[0]["start"] == times.rfc3339(START_NS + 10**9)
    assert Path(found[0]["path"]).is_dir()
    assert found[0]["target"]["pid"] == 4711
    assert out.count("\n") == 1


def test_one(run: Run, store: Store) -> None:
    code, out, err = run("--dest", store.dest, incident(1).id[:18])
    assert (code, err) == (0, "")
    assert "Verdict: metadata-lock 0.93" in out
    assert "trigger threads-running: Threads_running 187 > 40" in out
    assert "captures/0001.jsonl.zst (trigger)" in out
    assert "threads running" in out
    assert all(len(line) <= 80 for line in out.splitlines()[2:])
    assert str(store.incidents / incident(1).id) in out
    code, out, _ = run("--dest", store.dest, incident(1).id, "--json")
    (one,) = json_of(out)
    assert [file["file"] for file in one["files"]] == [
        layout.capture_name(number) for number in (1, 2, 3)
    ]
    assert one["notes"][0]["code"] == "suppressed"


def test_the_minute_before_is_shown(run: Run, store: Store) -> None:
    start_ns = incident(7).start_ns
    early, late = sample(start_ns - 61 * 10**9, FSYNC), sample(start_ns, FSYNC)
    before = [sample(start_ns - n * 10**9, MUTEX, IDLE) for n in (60, 2, 1)]
    with store.begin(incident(7)) as folder:
        for one in (early, *before, *before, late):
            folder.append_waits([msgspec.json.encode(line(one))])
        folder.append_waits([b"damaged", b'{"history": [{"time_ns": -1}]}'])
        folder.finish(folder.incident)
    _, out, _ = run("--dest", store.dest, incident(7).id)
    shown = out.partition("What threads did in the minute before\n")[2].splitlines()
    assert shown[1].split()[:3] == ["12", "12", "100%"]
    assert "mutex buf_pool->mutex" in shown[1]
    assert shown[2] == "  and 380 idle threads, on average of 3 samples"
    _, out, _ = run("--dest", store.dest, incident(7).id, "--json")
    (written,) = json_of(out)
    assert [found["time_ns"] for found in written["before"]] == [found.time_ns for found in before]
    assert written["before"][0]["rows"][0]["kind"] == MUTEX.kind
    _, out, _ = run("--dest", store.dest, incident(2).id)
    assert "What threads did" not in out


def test_choices(run: Run, store: Store) -> None:
    def chosen(*args: str) -> list[int]:
        ids = [one["id"] for one in json_of(run("--dest", store.dest, "--json", *args)[1])]
        return [int(name[14:15]) for name in ids]

    assert chosen("--signature", "metadata-lock") == [1]
    assert chosen("--signature", "none") == [2]
    assert chosen("--last", "2") == [2, 3]
    assert chosen("--since", times.rfc3339(START_NS + 2 * 10**9)) == [2, 3]
    assert chosen("--since", times.local(START_NS + 3 * 10**9)) == [3]
    assert chosen("--since", "1min") == ([] if time.time_ns() > START_NS + 10**11 else [1, 2, 3])


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--since", "yesterday"], "is not a time"),
        (["--since", "99999-01-01"], "is not a time"),
        (["nothing"], "no incident nothing"),
        (["2026"], "3 incidents begin with 2026"),
        (["2026", "--last", "1"], "not both"),
        (["--dry-run"], "--prune"),
        (["--retention-count", "1"], "--prune"),
        (["--prune", "--retention-count", "0"], "1 to 999999999"),
        (["--prune", "--retention-size", "1X"], "not a size"),
        (["--prune", "--retention-time", "nan"], "not days"),
        (["--prune", "2026"], "give no ID"),
    ],
)
def test_wrong_usage(run: Run, store: Store, args: list[str], what: str) -> None:
    code, out, err = run("--dest", store.dest, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert what in err
    assert len(listing(store.dest).incidents) == 3


def test_no_store(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--dest", tmp_path)
    assert (code, out) == (1, "")
    assert "no store there" in err
    assert run("--dest", tmp_path / "absent")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_no_store_yet_where_none_was_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SYSTEM_DEST", tmp_path / "no" / "such")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert layout.default_dest() == tmp_path / "state" / "stallscope"
    code, out, _ = run()
    assert (code, out.splitlines()[0][:11]) == (0, "0 incidents")
    assert json_of(run("--json")[1]) == []
    fill(Store.open(None), 1, lambda _: None)
    assert len(json_of(run("--json")[1])) == 1


def test_a_folder_of_pt_stalk(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "2026_11_21_10_00_00-processlist").write_text("")
    gdb = (
        "Thread 1 (Thread 0x7f0000000700 (LWP 101)):\n#0  0x00007f4 in poll () from /lib/libc.so\n"
    )
    (tmp_path / "2026_11_21_10_00_00-stacktrace").write_text(gdb)
    code, _, err = run("--dest", tmp_path)
    assert code == 1
    assert f"stallscope analyze {tmp_path}" in err
    assert main(["analyze", str(tmp_path)]) == 0
    assert "1 thread" in capsys.readouterr().out
    Store.open(tmp_path)
    code, out, err = run("--dest", tmp_path)
    assert (code, out[:11]) == (0, "0 incidents")
    assert "pt-stalk" in err


def test_prune(run: Run, store: Store) -> None:
    keep = ("--prune", "--retention-time", "36500", "--retention-count", "2")
    code, out, _ = run("--dest", store.dest, *keep, "--dry-run")
    assert code == 0
    assert out.startswith(f"would remove {incident(1).id}\n")
    assert len(listing(store.dest).incidents) == 3
    code, out, _ = run("--dest", store.dest, *keep, "--json")
    assert json.loads(out)["removed"] == [incident(1).id]
    assert len(listing(store.dest).incidents) == 2
    (store.incidents / incident(2).id / "mine").write_text("x")
    code, out, err = run("--dest", store.dest, "--prune", "--retention-count", "1")
    assert code == 3
    assert "mine" in err


def test_rebuild_index(run: Run, store: Store) -> None:
    index = store.dest / layout.INDEX
    run("--dest", store.dest)
    good = json.loads(index.read_bytes())
    index.write_bytes(b"\0" * 100)
    assert run("--dest", store.dest)[0] == 0
    assert json.loads(index.read_bytes()) == good
    good["incidents"][0]["captures"] = 77
    index.write_text(json.dumps(good))
    assert json_of(run("--dest", store.dest, "--json", "--rebuild-index")[1])[0]["captures"] == 3


def test_what_cannot_be_read_is_said(run: Run, store: Store) -> None:
    (store.incidents / incident(2).id / "incident.json").write_bytes(b"{")
    code, out, err = run("--dest", store.dest)
    assert (code, err.count("\n")) == (3, 1)
    assert out.startswith("2 incidents")
    assert incident(2).id in err


def test_a_reason_for_no_connections_is_reported_once(run: Run, tmp_path: Path) -> None:
    with Store.open(tmp_path).begin(incident(1)) as folder:
        for number, reason in enumerate(("no answer", "no answer", None, "refused", "no answer")):
            entry = CaptureEntry("", START_NS + number, "burst", sessions=reason)
            folder.add_capture(CAPTURE, entry)
    code, out, _ = run("--dest", tmp_path, incident(1).id)
    assert code == 0
    timeline = " ".join(out.partition("Timeline")[2].partition("Notes")[0].split())
    assert re.findall(r"000(\d)\.jsonl\.zst \(burst\): not analyzed([^-+]*)", timeline) == [
        ("1", "; without connections: no answer "),
        ("2", "; without connections "),
        ("3", " "),
        ("4", "; without connections: refused "),
        ("5", "; without connections "),
    ]


HOSTILE = "\x1b[31mred\x07\u202e\n<script>[bold]" + "A" * 300


def test_hostile_text_is_inert(run: Run, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first = incident(1)
    with store.begin(
        Incident(
            id=first.id,
            start_ns=first.start_ns,
            target=TargetEntry(1, HOSTILE, server=HOSTILE, version=HOSTILE, host=HOSTILE),
            triggers=(Fired(HOSTILE, HOSTILE, first.start_ns),),
            notes=(Note(HOSTILE, HOSTILE),),
            verdict=Verdict(HOSTILE, HOSTILE, 1e300, 1, HOSTILE),
        )
    ) as folder:
        folder.add_capture(CAPTURE, CaptureEntry("", 1, HOSTILE, sessions=HOSTILE))
        folder.append_samples([status_sample(1), status_sample(2)])
    for args in ((), (first.id,)):
        code, out, err = run("--dest", tmp_path, *args)
        assert code == 0
        assert all(line.isprintable() for line in (out + err).splitlines())
    assert json_of(run("--dest", tmp_path, "--json")[1])[0]["verdict"] == HOSTILE


def test_deadlocks(run: Run, store: Store) -> None:
    (store.dest / "deadlocks" / f"{incident(1).id}-deadlock.json").unlink()
    lock = DeadlockLock("row", "`db`.`t`", "PRIMARY", "X")
    for number in (1, 2):
        transactions = (
            DeadlockTransaction("7", 11, user="app", query="UPDATE t SET a = ?", waits=lock),
            DeadlockTransaction("8", 12, query=HOSTILE, holds=(lock, lock)),
        )
        one = Deadlock(f"2026112{number}T000000-ab", START_NS + number, transactions, "log")
        assert store.add_deadlock(msgspec.structs.replace(one, victim=1))
        assert not store.add_deadlock(one)
    code, out, err = run("--dest", store.dest, "--deadlocks")
    assert (code, err) == (0, "")
    assert out.startswith("2 deadlocks in ")
    assert "transaction 7, connection 11, user app; waits for row lock on `db`.`t`" in out
    assert "transaction 8, connection 12, rolled back; holds row lock" in out
    assert all(line.isprintable() for line in out.splitlines())
    found = json.loads(run("--dest", store.dest, "--deadlocks", "--json", "-n", "1")[1])
    assert found["schema"] == "stallscope.deadlocks/1"
    assert [one["id"] for one in found["deadlocks"]] == ["20261122T000000-ab"]
    (store.dest / "deadlocks" / "20261123.json").write_text("{")
    code, out, err = run("--dest", store.dest, "--deadlocks")
    assert (code, err.count("\n"), out.count("transaction 7")) == (3, 1, 2)
    assert run("--dest", store.dest, "--deadlocks", "--prune")[0] == 2


@pytest.mark.needs("root")
def test_of_another_user(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Listing needs read access alone and writes nothing; without it, one line says so."""
    copy = tmp_path / "copy"
    shutil.copytree(store.dest, copy)
    # Beside the folders of pytest, which each run of it closes again for others.
    folder = Path(tempfile.mkdtemp(prefix="stallscope-store-"))
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    dest = folder / "store"
    shutil.copytree(store.dest, dest)
    dest.chmod(0o700)
    # Everything is imported before: the interpreter's own files may be root's alone.
    code = f"""
import contextlib, io, os, sys
from stallscope.main import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["incidents", "--dest", {str(copy)!r}])
os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.exit(main(["incidents", "--dest", {str(dest)!r}]))
"""

    def as_nobody() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = as_nobody()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "Permission denied" in done.stderr
    for path in (dest, *dest.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    done = as_nobody()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 incidents")
    assert not (dest / layout.INDEX).exists()

# SPDX-License-Identifier: Apache-2.0
"""``stallscope export`` as its users see it."""

from __future__ import annotations

import gzip
import json
import stat
from collections.abc import Callable
from pathlib import Path

import duckdb
import msgspec
import pytest

from stallscope.base.errors import Exit
from stallscope.commands import export
from stallscope.main import main
from stallscope.model import capturefile
from stallscope.model.incident import CaptureEntry
from stallscope.reporters.export.tables import TABLES
from stallscope.store import Store
from tests.unit import gdb_dumps
from tests.unit.captures import convoy
from tests.unit.exports import history

DUMP = gdb_dumps.path_of(gdb_dumps.TABLE_OPEN)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str | Path) -> tuple[int, str, str]:
        code = main(["export", *map(str, words)])
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "stall.jsonl.zst"
    capturefile.write(msgspec.structs.replace(convoy(), notes=()), path)
    return path


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    """An incident as the agent leaves it; return its folder."""
    made = history()
    with Store.open(tmp_path / "store").begin(
        msgspec.structs.replace(made.incident, captures=())
    ) as folder:
        folder.append_samples(made.samples)
        folder.append_waits([msgspec.json.encode(line) for line in made.waits])
        for number in range(2):
            capture = msgspec.structs.replace(convoy(2 + number), notes=())
            entry = CaptureEntry("", made.incident.start_ns + number, "trigger")
            folder.add_capture(capturefile.dumps(capture), entry)
        folder.finish(msgspec.structs.replace(folder.incident, end_ns=made.incident.end_ns))
        return folder.path


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["x"],
        ["x", "--to", "gif"],
        ["x", "--to", "svg", "--table", "locks"],
        ["x", "--to", "csv", "--table", "nothing"],
        ["x", "--to", "csv", "--table", "all"],
        ["x", "--to", "pprof", "--by-thread"],
        ["x", "--to", "csv", "--by-state"],
        ["20261121T145012.345Z-mariadbd-4711", "--to", "csv", "--dest", "/proc/nonexistent"],
    ],
)
def test_wrong_usage(cli: Run, words: list[str]) -> None:
    code, out, err = cli(*words)
    assert code == Exit.USAGE
    assert out == ""
    assert err.startswith("stallscope: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["/proc/nonexistent", "--to", "svg", "-o", "{0}/x"],
        ["/dev/null", "--to", "folded"],
        [str(DUMP), "--to", "csv", "--table", "samples"],
        [str(DUMP), "--to", "svg", "-o", "/proc/nonexistent/x"],
        ["{0}", "--to", "folded"],
    ],
)
def test_failures(cli: Run, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("nothing\n")
    code, out, err = cli(*(word.format(tmp_path) for word in words))
    assert code == Exit.FAILED
    assert out == ""
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("form", export.FORMATS)
def test_every_format_as_a_file_and_on_standard_output(
    saved: Path, tmp_path: Path, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "out"
    assert main(["export", str(saved), "--to", form, "-o", str(path)]) == Exit.DONE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert main(["export", str(saved), "--to", form]) == Exit.DONE
    out = capfdbinary.readouterr().out
    assert out == path.read_bytes()
    assert main(["export", str(saved), "--to", form, "-o", str(path)]) == Exit.FAILED
    assert main(["export", str(saved), "--to", form, "-o", str(path), "--force"]) == Exit.DONE


def test_names_are_those_of_the_code() -> None:
    assert tuple(TABLES) == export.TABLES


def test_notes_make_it_a_part(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    capturefile.write(convoy(), path)
    code, _, err = cli(path, path, "--to", "folded")
    assert code == Exit.PARTIAL
    assert err == f"stallscope: {path}: {convoy().notes[0].message} [threads-lost]\n", "once"


def test_what_cannot_be_read_does_not_stop_the_rest(cli: Run, saved: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(capturefile.dumps(convoy())[:-300])
    code, out, err = cli(torn, saved, "--to", "folded")
    assert code == Exit.PARTIAL
    assert "torn.jsonl" in err
    assert out.count("\n") == 3


def test_a_folder(cli: Run, tmp_path: Path) -> None:
    for name in (gdb_dumps.IDLE, gdb_dumps.INDEX_LOCK):
        (tmp_path / name).write_bytes(gdb_dumps.dump(name))
    code, out, err = cli(tmp_path, "--to", "folded")
    assert (code, err) == (Exit.DONE, "")
    counted = sum(int(line.rpartition(" ")[2]) for line in out.splitlines())
    code, out, _ = cli(tmp_path, "--to", "csv", "--table", "captures")
    assert code == Exit.DONE
    assert out.count("\r\n") == 2 + 1
    assert counted == 33 + 58


@pytest.mark.parametrize("word", ["folder", "file", "above"])
def test_an_incident(cli: Run, incident: Path, word: str) -> None:
    named = {"folder": incident, "file": incident / "incident.json", "above": incident.parent}
    code, out, err = cli(named[word], "--to", "chrome-trace")
    assert (code, err) == (Exit.DONE, "")
    names = [event["name"] for event in json.loads(out)["traceEvents"]]
    # Of two waiters alone their own wait is surer than its cause; the incident has its name, too.
    assert names.count("table-open-lock") == 2
    assert names.count("innodb-table-stats") == 1
    assert "threads-running" in names
    assert names.count("mutex LOCK_open") == 3  # one that a probe saw, two that captures were for


def test_an_incident_by_its_id(cli: Run, incident: Path) -> None:
    store = incident.parent.parent
    code, out, err = cli(incident.name, "--dest", store, "--to", "folded")
    assert (code, err) == (Exit.DONE, "")
    assert "open_table;pthread_mutex_lock;__lll_lock_wait 5\n" in out
    for short in (incident.name[:-1], incident.name[:13], "last"):
        assert cli(short, "--dest", store, "--to", "folded")[1] == out
    assert cli("20010101", "--dest", store, "--to", "folded")[0] == Exit.USAGE


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_all_tables(cli: Run, incident: Path, tmp_path: Path, form: str) -> None:
    folder = tmp_path / "tables"
    assert cli(incident, "--to", form, "--table", "all", "-o", folder)[0] == Exit.DONE
    assert {path.name for path in folder.iterdir()} == {f"{name}.{form}" for name in TABLES}
    with duckdb.connect() as connection:
        for name in TABLES:
            question = f"SELECT DISTINCT incident FROM '{folder}/{name}.{form}'"
            assert connection.execute(question).fetchall() == [(incident.name,)]
    code, _, err = cli(incident, "--to", form, "--table", "all", "-o", folder)
    assert code == Exit.FAILED
    assert "--force" in err
    assert cli(incident, "--to", form, "--table", "all", "-o", folder, "--force")[0] == Exit.DONE


def test_what_has_no_time_is_named(cli: Run) -> None:
    code, out, err = cli(DUMP, "--to", "chrome-trace")
    assert code == Exit.PARTIAL
    assert f"{DUMP}: has no time" in err
    assert json.loads(out)["traceEvents"]


def test_bytes_do_not_change(cli: Run, saved: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "1.pb.gz", tmp_path / "2.pb.gz"
    for path in (one, other):
        assert cli(saved, "--to", "pprof", "-o", path)[0] == Exit.DONE
    assert one.read_bytes() == other.read_bytes()
    assert gzip.decompress(one.read_bytes())

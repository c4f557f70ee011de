# SPDX-License-Identifier: Apache-2.0
"""``stallscope fleet``: its answers as text and JSON, what it refuses, and what it never prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.errors import Exit
from stallscope.commands import _fleet
from stallscope.fleet.batch import make
from stallscope.fleet.engines.folder import FolderDestination
from stallscope.fleet.questions.asking import QUESTIONS
from stallscope.fleet.settings import PASSWORD
from stallscope.fleet.tables import SCHEMA
from stallscope.main import main
from stallscope.reporters import fleet
from stallscope.reporters.fleetcells import COLUMNS
from tests.support.fleet.questionscenes import NOW, scene
from tests.unit.reports import busy, store_incident

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "fleet"
SEED = 7
SECRET = "hunter2secret"
SINCE = ("--since", "2026-11-28T12:00:00+00:00", "--until", "2026-11-29T12:00:00+00:00")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (_fleet.ENVIRONMENT, PASSWORD):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet")
    destination = FolderDestination(path, min_free=0)
    destination.send(make(scene(SEED, 200).rows))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["fleet", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_question_has_an_answer(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (name, "--from", f"file://{folder}", *SINCE)
    code, out, err = said(capsys, *words, "--json")
    value = json.loads(out)
    assert value["schema"] == SCHEMA
    assert value["question"] == name
    assert value["since"] == "2026-11-28T12:00:00.000000Z"
    assert all(set(QUESTIONS[name].columns) == set(row) for row in value["rows"])
    assert err.count("\n") == len(value["notes"])
    assert code == Exit.DONE
    code, out, _ = said(capsys, *words)
    lines = out.splitlines()
    assert lines[0]
    assert all(len(line) <= 80 and line.isprintable() for line in lines)
    assert code == Exit.DONE


def test_the_columns_for_people_are_of_the_answers() -> None:
    for name, columns in COLUMNS.items():
        assert set(columns) <= set(QUESTIONS[name].columns), name


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    value = json.loads(path.read_text())
    shown = fleet.Shown(
        SCHEMA,
        value["question"],
        QUESTIONS[value["question"]].columns,
        value["rows"],
        (),
        NOW - 86_400_000,
        NOW,
        value["limit"],
    )
    text = "\n".join(line.text for line in fleet.render(shown, 80)) + "\n"
    golden = path.with_suffix(".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@given(
    st.sampled_from(sorted(QUESTIONS)),
    st.lists(
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=90),
            st.lists(st.text(max_size=30), max_size=4), st.dictionaries(st.text(), st.none()),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(40, 200),
)  # fmt: skip
def test_any_value_is_shown(name: str, values: list[object], width: int) -> None:
    columns = QUESTIONS[name].columns
    row = {column: values[at % len(values)] for at, column in enumerate(columns)}
    shown = fleet.Shown(SCHEMA, name, columns, [row], (), NOW - 1000, NOW, 100)
    lines = fleet.render(shown, width)
    assert all(line.text.isprintable() for line in lines)
    assert max(len(line.text) for line in lines) <= width


@pytest.mark.parametrize(
    "words",
    [
        ("now", "--from", f"clickhouse+https://dba:{SECRET}@h/db"),
        ("now", "--from", f"clickhouse+https://dba%3A{SECRET}@h/db"),
        ("now", "--from", f"file://dba:{SECRET}@h/db"),
        ("now", f"--from=clickhouse+https://dba:{SECRET}@h:99999/db"),
        ("now", f"--form=clickhouse+https://dba:{SECRET}@h/db"),
        ("now", f"clickhouse+https://dba:{SECRET}@h/db"),
        ("init", f"clickhouse+http://dba:{SECRET}@h/db"),
        ("init", f"clickhouse+http://dba:a/{SECRET}@h/db"),
        ("ship", "--to", f"clickhouse+http://dba:{SECRET}@h/db"),
        ("report", "-o", "-", "--from", f"clickhouse+http://dba:{SECRET}@h/db"),
        ("prune", "--days", "3", "--from", f"clickhouse+http://dba:{SECRET}@h/db"),
        ("compact", f"clickhouse+http://dba:{SECRET}@h/db"),
        (f"clickhouse+http://dba:{SECRET}@h/db",),
    ],
    ids=lambda words: " ".join(words).replace(SECRET, "X"),
)
@pytest.mark.parametrize("debug", [False, True])
def test_an_address_with_a_password_is_refused_and_not_printed(
    words: tuple[str, ...], debug: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = ("--dest", str(tmp_path)) if words[0] == "ship" else ()
    code, out, err = said(capsys, *words, *more, *(["--debug"] if debug else []))
    assert code == Exit.USAGE
    assert SECRET not in out + err
    if not debug:
        assert err.count("\n") == 1
        assert err.startswith("stallscope: ")


def test_the_password_of_the_environment_is_not_in_the_process_list(tmp_path: Path) -> None:
    """A server that never answers is asked: its request has it, the process list does not."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "stallscope", "fleet", "now"),
                *("--from", f"clickhouse+http://dba@127.0.0.1:{port}/db"),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), PASSWORD: SECRET},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            listener.settimeout(60)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                request = b""
                while SECRET.encode() not in request and b"\r\n\r\n" not in request:
                    request += connection.recv(65536)
                assert SECRET.encode() in request, "it was sent"
                assert SECRET.encode() not in request.split(b"\r\n")[0], "but not in the address"
                line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                assert SECRET.encode() not in line
        finally:
            process.kill()
            out, err = process.communicate()
        assert SECRET.encode() not in out + err


def test_a_password_file_and_the_environment_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stallscope.main import parser

    def password(*words: str) -> str:
        args = parser(["fleet"]).parse_args(["fleet", "now", *words])
        (place,) = _fleet.places(args)
        assert SECRET not in repr(place)
        return place.address.password

    url = ("--from", "clickhouse+http://dba@h/db")
    assert password(*url) == ""
    monkeypatch.setenv(PASSWORD, SECRET)
    assert password(*url) == SECRET
    file = tmp_path / "password"
    file.write_text("other\n")
    assert password(*url, "--password-file", str(file)) == "other"
    monkeypatch.setenv(_fleet.ENVIRONMENT, "clickhouse+http://dba:third@h/db")
    assert password() == "third"
    config = tmp_path / "agent.toml"
    config.write_text(
        '[[server]]\nname = "db1"\ntarget = "mysqld"\n[ship]\nurl = "clickhouse+http://a@h/db"\n'
        f'password-file = "{file}"\n'
    )
    config.chmod(0o600)
    monkeypatch.delenv(_fleet.ENVIRONMENT)
    monkeypatch.delenv(PASSWORD)
    assert password("--config", str(config)) == "other"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("now",), "which fleet?"),
        (("now", "--from", "fleet"), "it is no address"),
        (("now", "--from", "file://relative"), "whole path"),
        (("now", "--from", "file:///nowhere/at/all"), "there is no folder"),
        (("now", "--from", "file:///a", "--from", "file:///b"), "one fleet at a time"),
        (("now", "--from", "file:///tmp", "--since", "soon"), "write a time"),
        (("now", "--from", "file:///tmp", "--until", "2d"), "--until is not after --since"),
        (("now", "--from", "file:///tmp", "--limit", "0"), "a number of rows"),
        (("silent", "--from", "file:///tmp", "--minutes", "0"), "a number of minutes"),
        (("now", "--from", "file:///tmp", "--ca-file", "/nowhere"), "no such file"),
        (("now", "--from", "file:///tmp", "--password-file", "/nowhere"), "cannot read"),
        (("init", "file:///tmp", "--cluster", "c"), "--cluster is for ClickHouse"),
        (("init", "file:///tmp", "--cluster", "a b"), "no name of a cluster"),
        (("init", "file:///proc/fleet"), "cannot make"),
        (("prune", "--days", "0", "--from", "file:///tmp"), "a number of days"),
        (("compact", "clickhouse+http://h/db"), "compact is for folders"),
        (("report", "-o", "-", "--reports", "x"), "--reports takes"),
        (("report", "-o", "-", "--reports", "javascript:{id}"), "--reports takes"),
        (("report", "-o", "-", "--reports", "//h/{id}"), "--reports takes"),
        (("report", "-o", "-", "--reports", "http://{port}/{id}"), "--reports takes"),
        (("report", "-o", "-", "--with-reports", "/tmp"), "needs a file"),
        (("ship", "--dest", "/nowhere", "--to", "file:///tmp"), "no such directory"),
        (("nonsense",), "invalid choice"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, *words)
    assert code in (Exit.USAGE, Exit.FAILED)
    assert out == ""
    assert err.count("\n") == 1
    assert wrong in err


def test_from_a_store_to_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_incident(tmp_path / "store", [busy(20)]).parents[1]
    url = f"file://{tmp_path / 'fleet'}"
    assert said(capsys, "init", url)[:2] == (Exit.DONE, f"{url}: created\n")
    assert said(capsys, "init", url)[:2] == (Exit.DONE, f"{url}: is there\n")
    for _ in range(2):
        code, out, err = said(capsys, "ship", "--dest", store, "--to", url)
        assert (code, err) == (Exit.DONE, "")
        assert out.startswith(f"{url}: 1 incident is there, ")
    when = ("--since", "2026-01-01", "--until", "2030-01-01")
    code, out, _ = said(capsys, "signatures", "--from", url, *when, "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["incidents"], row["hosts"]) == (1, 1)
    code, out, _ = said(capsys, "compact", url)
    assert code == Exit.DONE
    assert json.loads(said(capsys, "signatures", "--from", url, *when, "--json")[1])["rows"] == [
        row
    ]
    assert said(capsys, "prune", "--days", "1", "--from", url)[0] == Exit.DONE
    assert json.loads(said(capsys, "signatures", "--from", url, *when, "--json")[1])["rows"] == []


def test_what_cannot_be_sent_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_incident(tmp_path / "store", [busy(20)])
    (store / "incident.json").write_text("{")
    url = f"file://{tmp_path}"
    code, out, err = said(capsys, "ship", "--dest", store.parents[1], "--to", url)
    assert code in (Exit.PARTIAL, Exit.FAILED)
    assert "0 incidents are there" in out
    assert "cannot be read" in err

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes, snapshot
from stallscope.collectors.processes import Server
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.unit.captures import convoy
from tests.unit.programs import python_program

POSTGRES = "/usr/lib/postgresql/15/bin/postgres"
Take = Callable[..., Capture]


@pytest.fixture
def take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Take:
    """Return a function that captures this process in the guise of a server."""
    base = convoy()
    process = msgspec.structs.replace(base.processes[0], pid=os.getpid())
    capture = msgspec.structs.replace(base, processes=(process,), notes=())
    (tmp_path / "answer").write_bytes(capturefile.dumps(capture))
    code = f"import sys; sys.stdout.write(open({str(tmp_path / 'answer')!r}).read())"
    monkeypatch.setenv("STALLSCOPE_PROBE", str(python_program(tmp_path / "probe", code)))

    def take_as(exe: str, datadir: Path | None = None, left_out: int = 0) -> Capture:
        info = processes.read(os.getpid())
        assert info is not None
        server = Server(
            main=msgspec.structs.replace(info, exe=exe),
            pids=(info.pid,),
            left_out=left_out,
            datadir=None if datadir is None else str(datadir),
        )
        return snapshot.take(server.pids, (server,), snapshot.Options()).capture

    return take_as


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15\n", "15"), ("9.6\n", "9.6"), ("\x1b[31m", None), ("", None), (None, None)],
)
def test_version_of_a_postgres_data_directory(
    take: Take, tmp_path: Path, text: str | None, expected: str | None
) -> None:
    if text is not None:
        (tmp_path / "PG_VERSION").write_text(text)
    strings = take(POSTGRES, tmp_path).processes[0].strings
    assert strings.get("PG_VERSION") == expected
    assert strings["server_version"] == "5.5.9"


def test_no_other_servers_directory_is_read(take: Take, tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("15\n")
    assert "PG_VERSION" not in take("/usr/sbin/mysqld", tmp_path).processes[0].strings
    assert "PG_VERSION" not in take(POSTGRES, None).processes[0].strings


def test_processes_left_out_are_a_note(take: Take) -> None:
    (note,) = take(POSTGRES, left_out=7).notes
    assert note.code == "processes-left-out"
    assert "7 processes" in note.message
    assert take(POSTGRES).notes == ()


def test_a_capture_of_the_probe_is_no_file_yet(take: Take) -> None:
    assert take("/usr/sbin/mysqld").path is None


def test_gdb_is_not_a_way_around_a_process_that_is_gone(
    take: Take, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python_program(tmp_path / "probe", "import sys; sys.exit('stallscope-probe: no process 1')")
    options = snapshot.Options(allow_stop=True)
    with pytest.raises(StallscopeError, match="no process 1"):
        snapshot.take((2**22 + 1,), (), options)


def test_without_gdb_the_error_of_the_probe_is_kept(
    take: Take, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python_program(tmp_path / "probe", "import sys; sys.exit('stallscope-probe: nothing works')")
    monkeypatch.setenv("PATH", "/nonexistent")
    options = snapshot.Options(allow_stop=True)
    with pytest.raises(StallscopeError, match="nothing works"):
        snapshot.take((os.getpid(),), (), options)

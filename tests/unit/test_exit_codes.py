# SPDX-License-Identifier: Apache-2.0
"""One rule of all commands for what is done, and what is done in part: docs/exit-codes.md."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from stallscope.base.errors import Exit
from stallscope.main import COMMANDS, main
from stallscope.model import capturefile
from stallscope.model.capture import SESSIONS, Note
from stallscope.store import layout
from tests.unit.captures import convoy

PAGES = Path(__file__).resolve().parents[2] / "docs"

READERS: dict[str, Callable[[Path, Path], list[str]]] = {
    "analyze": lambda file, out: [str(file)],
    "analyze --json": lambda file, out: ["--json", str(file)],
    "diff": lambda file, out: [str(file), str(file)],
    "diff --json": lambda file, out: ["--json", str(file), str(file)],
    "export": lambda file, out: [str(file), "--to", "folded"],
    "report": lambda file, out: [str(file), "-o", str(out)],
    "report --compare": lambda file, out: [str(file), str(file), "--compare", "-o", str(out)],
}


@pytest.mark.parametrize("words", READERS)
@pytest.mark.parametrize(
    ("notes", "code"),
    [
        ((), Exit.DONE),
        ((Note(SESSIONS, "the server was not asked"),), Exit.DONE),
        ((Note("thread-ended", "1 thread ended meanwhile"),), Exit.PARTIAL),
        ((Note(SESSIONS, "no answer"), Note("thread-ended", "1 thread ended")), Exit.PARTIAL),
    ],
    ids=["no-note", "sessions", "process", "both"],
)
def test_a_capture_with_notes(
    tmp_path: Path, words: str, notes: tuple[Note, ...], code: Exit
) -> None:
    file = tmp_path / "capture.jsonl"
    capturefile.write(msgspec.structs.replace(convoy(), notes=notes), file)
    assert main([words.split()[0], *READERS[words](file, tmp_path / "out.html")]) == code


@pytest.mark.parametrize(("options", "code"), [((), Exit.DONE), (("--fail-on-stall",), Exit.STALL)])
def test_a_reader_that_leaves(options: tuple[str, ...], code: Exit) -> None:
    """As ``head``: where the exit code was asked for, it is that of the verdict."""
    file = PAGES.parent / "tests/data/importers/bcc-offcputime.in"
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-P", "-m", "stallscope", "analyze", "--full", str(file), *options]
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize("name", ["incidents", "watch"])
def test_a_user_without_home(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: int) -> NoReturn:
        raise KeyError

    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", none)
    monkeypatch.setattr(layout, "_writable", lambda folder: False)
    more = ["-p", str(os.getpid()), "--no-sql", "--once"] if name == "watch" else []
    assert main([name, *more]) == Exit.USAGE


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_lists_its_exit_codes(name: str) -> None:
    assert "\n## Exit codes\n" in (PAGES / "commands" / f"{name}.md").read_text()


def test_the_page_names_each_code() -> None:
    page = (PAGES / "exit-codes.md").read_text()
    assert [code for code in Exit if f"\n| {code:d} |" not in page] == []

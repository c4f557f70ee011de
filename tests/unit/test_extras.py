# SPDX-License-Identifier: Apache-2.0
"""Without the packages of the extras one command each is missing, and says what to type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stallscope.base import extras
from stallscope.base.errors import Exit, StallscopeError

pytestmark = pytest.mark.large

ROOT = Path(__file__).resolve().parents[2]
CAPTURE = str(ROOT / "tests" / "data" / "top" / "metadata-lock.jsonl.zst")
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from stallscope.main import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs stallscope as if some packages were not installed."""


def without(*words: str, blocked: tuple[str, ...] = tuple(extras.EXTRAS.values())) -> list[str]:
    code = f"BLOCKED = {blocked!r}\n{WITHOUT}"
    return [sys.executable, "-P", "-c", code, *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        without(*words),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    for extra, module in extras.EXTRAS.items():
        package = {"nacl": "pynacl", "psycopg": "psycopg[binary]"}.get(module, module)
        assert [line.split()[0] for line in declared[extra]] == [package]
    everything = {line.split()[0] for line in project["dependencies"]}
    assert not everything & set(extras.EXTRAS.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cron", "--help"], "--seconds"),
        (["report", "--help"], "--compare"),
        (["snap", "--help"], "--backend"),
        (["top", "--help"], "--replay"),
        (["watch", "--help"], "--duration"),
        (["analyze", "--json", CAPTURE], "metadata-lock"),
        (["diff", CAPTURE, CAPTURE], "threads"),
        (["export", CAPTURE, "--to", "svg"], "<svg"),
        (["triggers"], "trigger"),
        (["completion", "bash"], "stallscope"),
    ],
)
def test_all_else_works(words: list[str], expected: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (Exit.DONE, "")
    assert expected in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["report", CAPTURE, "-o", "{out}"],
            "stallscope report needs the Python package jinja2, which is not installed:"
            " pip install 'stallscope[report]'",
        ),
        (
            ["export", CAPTURE, "--to", "parquet", "--table", "all", "-o", "{out}"],
            "stallscope export --to parquet needs the Python package duckdb, which is not"
            " installed: pip install 'stallscope[parquet]'",
        ),
    ],
    ids=["report", "export"],
)
def test_a_missing_one_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = run(*(word.format(out=tmp_path / "out") for word in words))
    assert done.stderr == f"stallscope: {message}\n"
    assert done.returncode == Exit.FAILED
    assert not list(tmp_path.iterdir())


def test_top_without_textual_is_one_line() -> None:
    master, slave = os.openpty()
    with os.fdopen(master, "rb", buffering=0) as terminal:
        done = subprocess.run(
            without("top", "--replay", CAPTURE),
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            check=False,
        )
        os.close(slave)
        said = terminal.read(1 << 12).decode()
    assert said == (
        "stallscope: stallscope top needs the Python package textual, which is not installed:"
        " pip install 'stallscope[top]'\r\n"
    )
    assert done.returncode == Exit.FAILED


def test_the_doctor_names_what_is_missing() -> None:
    done = run("doctor", "--json", "--no-sql")
    (check,) = [item for item in json.loads(done.stdout)["checks"] if item["name"] == "packages"]
    assert check["status"] == "degraded"
    assert check["what"] == (
        "without textual no stallscope top; without jinja2 no stallscope report;"
        " without duckdb no stallscope export --to parquet;"
        " without apprise no destinations of the kind apprise;"
        " without nacl no SQL by an account of MariaDB with the plugin ed25519;"
        " without psycopg no SQL with PostgreSQL"
    )
    assert "pip install 'stallscope[top,report,parquet,apprise,ed25519,postgres]'" in check.values()


def test_a_package_that_cannot_be_loaded_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jinja2.py").write_text("import libfor.nothing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jinja2", raising=False)
    with pytest.raises(StallscopeError, match=r"cannot be loaded \(No module named 'libfor'\)"):
        extras.require("report", "it")

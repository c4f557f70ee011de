# SPDX-License-Identifier: Apache-2.0
"""What `stallscope version` says, and the versions that packages are built with."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import packages
import pytest

from stallscope.base import package
from stallscope.base.errors import Exit
from stallscope.commands import version
from stallscope.main import main

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("stallscope", "collectors", "analyzers")


def test_it_names_all_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["version", "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "stallscope.version/1"
    head = subprocess.run(
        ["git", "-C", CHECKOUT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert found["commit"].removesuffix("-dirty") == head.stdout.strip()
    assert found["version"] == found["probe"]["version"] == package.version()
    assert re.fullmatch("[0-9a-f]{64}", found["probe"]["sha256"])
    assert found["catalog"]["signatures"] > 50
    assert found["libraries"]["msgspec"]
    assert set(found["libraries"]) >= {"pymysql", "textual", "duckdb"}
    assert not {"pytest", "atheris"} & set(found["libraries"])
    assert main(["version"]) == Exit.DONE
    said = capsys.readouterr().out
    for part in (found["commit"], "capture/1", found["probe"]["path"], found["python"]):
        assert part in said


def test_without_a_probe_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_PROBE", "/nonexistent")
    assert main(["version", "--json"]) == Exit.PARTIAL
    assert "/nonexistent" in json.loads(capsys.readouterr().out)["probe"]["error"]
    assert main(["version"]) == Exit.PARTIAL
    assert "/nonexistent" in capsys.readouterr().out


def test_no_format_is_missing() -> None:
    """Each constant SCHEMA of the sources is in the list."""
    written = {
        found[1]: int(found[2])
        for folder in FOLDERS
        for path in (CHECKOUT / folder).rglob("*.py")
        for found in re.finditer(r'^SCHEMA = "stallscope\.([a-z-]+)/(\d+)"', path.read_text(), re.M)
    }
    assert version.schemas() == written


def test_the_lock_has_what_the_project_asks_for() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    of_extras = [lines for name, lines in optional.items() if name not in packages.NOT_PACKED]
    asked = [*project["dependencies"], *(line for lines in of_extras for line in lines)]
    lock = (CHECKOUT / "scripts/packaging/requirements.txt").read_text()
    locked = set(re.findall(r"^([\w.-]+)==", lock, re.M))
    for line in asked:
        name = re.match(r"[\w.-]+", line)
        assert name is not None
        assert re.sub("[._]", "-", name[0].lower()) in locked, f"{line}: run ./scripts/package lock"

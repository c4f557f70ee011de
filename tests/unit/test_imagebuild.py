# SPDX-License-Identifier: Apache-2.0
"""The reader of Containerfiles, with which tests/systems builds ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import imagebuild
from tests.support.imagebuild import CONTAINERFILE, build, instructions
from tests.support.vm import roots

__all__: list[str] = []


def test_lines_go_on_behind_comments() -> None:
    text = "# one\nFROM a AS b\nRUN x \\\n    # two\n    && y\n\nENV A=1 \\\n  B='2 3'\n"
    assert list(instructions(text)) == [
        ("FROM", "a AS b"),
        ("RUN", "x      && y"),
        ("ENV", "A=1    B='2 3'"),
    ]


def test_it_knows_every_instruction_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(roots, "inside", lambda root, script: ran.append(script))

    def base(number: str, root: Path) -> None:
        assert number == "13"
        root.mkdir()
        if not ran:
            (root / "opt/stallscope").mkdir(parents=True)

    image = build(CONTAINERFILE.read_text(), tmp_path, base)
    assert image.metadata["USER"] == "65532:65532"
    assert image.env["PATH"].startswith("/opt/stallscope/bin:")
    assert (tmp_path / "stage-0/src/pyproject.toml").is_file()
    assert (image.root / "opt/stallscope").is_dir()
    assert [script for script in ran if "apt-get" in script]
    assert all(script.startswith("export PATH=") for script in ran if "/src" in script)


def test_an_unknown_instruction_is_refused(tmp_path: Path) -> None:
    name = next(iter(imagebuild.BASES))
    with pytest.raises(ValueError, match="ONBUILD"):
        build(f"FROM {name}\nONBUILD RUN x\n", tmp_path, lambda *_: None)

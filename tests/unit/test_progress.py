# SPDX-License-Identifier: Apache-2.0
"""Progress goes to a terminal's standard error, and nowhere else."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.base.errors import Exit
from stallscope.main import main
from stallscope.reporters import progress
from tests.unit.reports import busy, store_incident


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("one[red]", "two\x1b[2J")]


def test_nothing_in_a_pipe(monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(progress.of_files(paths, printing=False)) == paths
    assert list(progress.of_bytes([b"ab", b"c"], "x", 3)) == [b"ab", b"c"]
    with progress.while_waiting("x"):
        pass
    assert stream.getvalue() == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(progress.of_files(paths, printing=False)) == paths
    shown = stream.getvalue()
    assert "2/2" in shown
    assert "\x1b[2J" not in shown
    inner: list[bytes] = []
    for _ in progress.of_files(paths, printing=False):
        inner += progress.of_bytes([b"ab"], "x", 1)  # one bar at a time
    assert inner == [b"ab", b"ab"]


def test_reports_are_progress_enough(monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert list(progress.of_files(paths, printing=True)) == paths
    assert stream.getvalue() == ""


def test_a_long_incident_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, require: Callable[..., None]
) -> None:
    require("web")
    incident = store_incident(tmp_path / "store", [busy(), busy()])
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    for words in (["report"], ["export", "--to", "folded"]):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        out = tmp_path / words[0]
        assert main([*words, str(incident), "-o", str(out)]) in (0, Exit.PARTIAL)
        for number in range(2):
            assert f"reading captures: {number} of 2" in stream.getvalue()

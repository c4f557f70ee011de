# SPDX-License-Identifier: Apache-2.0
"""What fails in a run of the tests fails the run, and is shown with the command that repeats it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import testrun
from tests.support.testboard import Board
from tests.support.testrun import ALONE, Run, Step, Work

__all__: list[str] = []


def breaks(work: Work) -> None:
    raise OSError("no such thing")


def outcomes(work: Work) -> None:
    work.pytest(work.log.with_name("test_outcomes.py"), "-p", "no:cacheprovider", "--noconftest")


@pytest.mark.parametrize(
    ("run", "code", "shown"),
    [
        (lambda work: work.check(["true"]), 0, "1 passed, 0 failed, 0 skipped"),
        (lambda work: work.check(["false"]), 1, "./scripts/test --step step"),
        (breaks, 1, "OSError: no such thing"),
        (lambda work: work.tally.skips("no gdb here"), 1, "1 x no gdb here"),
        (lambda work: work.pytest("nowhere.py"), 1, "pytest ended with 4"),
        (outcomes, 1, "2 passed, 2 failed, 1 skipped"),
        (outcomes, 1, "1 x not today"),
        (outcomes, 1, "test_outcomes.py::test_wrong'"),
    ],
)
def test_what_a_step_comes_to(
    run: object,
    code: int,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(testrun, "LOGS", tmp_path)
    (tmp_path / "test_outcomes.py").write_text(
        "import pytest\n"
        "def test_right() -> None: pass\n"
        "def test_wrong() -> None: assert 0\n"
        "def test_left_out() -> None: pytest.skip('not today')\n"
        "@pytest.fixture\n"
        "def untidy():\n"
        "    yield\n"
        "    assert 0\n"
        "def test_untidy(untidy) -> None: pass\n"
    )
    with Board() as board:
        Run(board).steps([Step("step", run, ALONE)])  # type: ignore[arg-type]
    monkeypatch.setattr(testrun, "CHECKOUT", tmp_path)
    assert testrun.report(board, 1.0) == code
    assert shown in capsys.readouterr().out


def test_c_tests_that_end_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three, and no word of the others."""
    meson = tmp_path / "meson"
    meson.write_text("#!/bin/sh\necho '1/3 stallscope:small / arena OK 0.1s'\n")
    meson.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(testrun, "LOGS", tmp_path)
    with Board() as board:
        Run(board).steps([Step("step", lambda work: work.meson_test(tmp_path, "small"), ALONE)])
    (tally,) = board.tallies
    assert (tally.passed, tally.failed) == (1, 1)

# SPDX-License-Identifier: Apache-2.0
"""What builds packages says: progress, the line that failed, and which warnings of Lintian fail."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import oci
import packages
import pytest
from phases import Phases, failing_line

from tests.support.cache import Unavailable

__all__: list[str] = []


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("Err:1 http://a\nE: Failed to fetch a\nE: Unable to fetch some archives\n", 1),
        ("error: subprocess-exited\nFAILED: a\ncc error.c\nerror.c:3:1: error: no\nerror: b\n", 3),
        ("error: subprocess-exited\nFAILED: a\nnpm ci\nnpm could not\nninja: stopped\n", 3),
        ("../meson.build:20:0: ERROR: Dependency not found\nA full log is there\n", 0),
        ("Killed\n\n", 0),
        ("error: Lintian: E: stallscope: bad\nmore\n", 0),
        ("cp: error writing 'b': No space left on device\nrm: a\n", 0),
    ],
)
def test_the_line_that_says_why(said: str, line: int) -> None:
    assert failing_line(said) == said.splitlines()[line]


def test_phases_of_a_log_are_shown(tmp_path: Path) -> None:
    log, out = tmp_path / "log", io.StringIO()
    log.write_text("phase: of another time\n")
    with Phases(log, out), log.open("a") as file:
        file.write("phase: first\nwords\nnotice: new\nphase: second\nmore")
    lines = [re.sub(r"^ *\d+ s  ", "", line) for line in out.getvalue().splitlines()]
    assert lines == ["notice: new", "first", "second"]


def test_a_failure_is_one_line_that_names_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_CACHE", str(tmp_path))
    log = tmp_path / "packages/deb-trixie.log"

    def fails() -> None:
        with packages.work("deb trixie"):
            log.write_text("phase: a\nE: of before\nphase: b\none\nE: two\nthree\n")
            raise Unavailable("a long text\nof many lines")

    with pytest.raises(Unavailable) as caught:
        fails()
    assert str(caught.value) == f"deb trixie: b: E: two ({log})"


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        ("E: stallscope: what-nobody-has-seen", True),
        ("W: stallscope: package-has-unnecessary-activation-of-ldconfig-trigger", True),
        ("W: stallscope source: no-manual-page [usr/bin/a: b]", True),
        ("W: stallscope: what-nobody-has-seen [a]", False),
        ("I: stallscope: no-manual-page", False),
        ("N: 2 hints overridden", False),
    ],
)
def test_warnings_of_lintian_that_are_new_do_not_fail(
    tmp_path: Path, line: str, fails: bool
) -> None:
    said = tmp_path / "said"
    said.write_text(f"{line}\n")
    done = subprocess.run(
        ["awk", "-F", ": ", "-f", "lintian.awk", "lintian-warnings.txt", said],
        cwd=packages.PACKAGING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == fails
    shown = {True: f"error: Lintian: {line}\n", False: ""}[fails]
    new = line.startswith("W") and not fails
    assert done.stdout == (
        f"notice: a warning that is new to this project: {line}\n" if new else shown
    )


def test_the_containerfile_builds_on_nothing() -> None:
    file = packages.CHECKOUT / "packaging/containers/Containerfile"
    config = oci.configuration(file.read_text())
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == (
        "65532:65532",
        ["stallscope"],
        ["--help"],
    )
    assert config["Env"] == ["PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"]


@pytest.mark.parametrize(
    "text", ["FROM debian:13-slim\n", "FROM scratch\nADD layer.tar /\nRUN apt-get update\n"]
)
def test_what_is_fetched_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        oci.configuration(text)

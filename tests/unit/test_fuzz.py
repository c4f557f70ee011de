# SPDX-License-Identifier: Apache-2.0
"""One pass of the fuzzers of Python over their examples, and how a long run shares its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fuzzrun

pytestmark = pytest.mark.small


@pytest.mark.parametrize("name", fuzzrun.READERS)
def test_each_example_is_read_or_refused(name: str, tmp_path: Path) -> None:
    # 100 damaged ones of the same seed each time.
    run = subprocess.run(
        [sys.executable, fuzzrun.FUZZ / "fuzz_readers.py", name, "--seed=1", "--rounds=100"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert fuzzrun.executions_of(run.stdout) > 100


def test_time_is_shared_out() -> None:
    turns = fuzzrun.share(["a", "b"], 1.0, 2)
    for target in ("a", "b"):
        mine = [turn.seconds for turn in turns if turn.target == target]
        assert sum(mine) == pytest.approx(3600)
        assert max(mine) <= fuzzrun.SLICE_SECONDS
    # Each has a turn before one has another.
    assert [turn.target for turn in turns[:4]] == ["a", "b", "a", "b"]
    assert [turn.target for turn in fuzzrun.share(["a", "b"], 0.01, 1)] == ["a", "b"]


def test_executions_are_read_from_what_a_fuzzer_says() -> None:
    assert fuzzrun.executions_of("seed 5\n1234 executions, 7 places, 8 inputs\n") == 1234
    assert fuzzrun.executions_of("==1==ERROR: AddressSanitizer") == 0

# SPDX-License-Identifier: Apache-2.0
"""A fixed number of runs of each importer's fuzz target, led by coverage (atheris)."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.analyzers import importers

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "importers"
FORMATS = ["gdb", *(known.name for known in importers.FORMATS)]
RUNS = 400
SECONDS = 100


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="no atheris: .venv/bin/pip install atheris"
)
@pytest.mark.parametrize("name", FORMATS)
def test_fuzz(name: str, tmp_path: Path) -> None:
    seed = random.randrange(1, 2**31)
    print(f"seed {seed}")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for path in DATA.glob("*.in"):
        if path.stem.startswith(name.split(" ")[0]) or path.stem == "mixed":
            shutil.copy(path, corpus)
    run = subprocess.run(
        [
            sys.executable,
            str(HERE / "fuzz_importers.py"),
            name,
            f"-runs={RUNS}",
            f"-seed={seed}",
            "-max_len=4096",
            "-timeout=20",
            "-rss_limit_mb=2048",
            str(corpus),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"Done {RUNS} " in run.stderr or "DONE" in run.stderr, run.stderr[-1000:]

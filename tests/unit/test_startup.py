# SPDX-License-Identifier: Apache-2.0
"""What a command imports before it does anything: a shell completion or --help must not wait."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.main import COMMANDS, command_module, main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
GOAL_SECONDS = 0.15
RUNS = 40
"""At most, until one has the caches of its processor to itself."""
HEAVY = frozenset(
    {"cryptography", "duckdb", "jinja2", "prometheus_client", "pymysql", "rich", "textual"}
)


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def seconds_of(*args: str, **environment: str) -> float:
    """Return the CPU time of a run: on an idle machine it takes as long, on a busy one longer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*args, **environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.alone
def test_help_starts_at_once(tmp_path: Path) -> None:
    # As where it is installed, or was run before: these tests keep no byte code.
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    words = ("-m", "stallscope", "--help")
    run(*words, **kept)
    times: list[float] = []
    while len(times) < RUNS and (not times or min(times) >= GOAL_SECONDS):
        times.append(seconds_of(*words, **kept))
    assert min(times) < GOAL_SECONDS, times


def test_help_imports_no_command() -> None:
    code = "import sys; from stallscope.main import parser; parser(()).format_help();"
    code += "print('\\n'.join(sys.modules))"
    loaded = set(run("-c", code).stdout.split())
    assert "stallscope.main" in loaded
    assert not {name for name in loaded if name.startswith("stallscope.commands.")}
    assert "msgspec" not in loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_options_need_no_heavy_module(name: str) -> None:
    code = f"import sys; from stallscope.main import parser; parser([{name!r}]);"
    code += "print('\\n'.join({module.partition('.')[0] for module in sys.modules}))"
    assert not HEAVY & set(run("-c", code).stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_described(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command_module(name)
    with pytest.raises(SystemExit):
        main(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"{name} {COMMANDS[name]}" in out

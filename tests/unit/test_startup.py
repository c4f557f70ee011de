# SPDX-License-Identifier: Apache-2.0
"""What a command imports before it does anything: a shell completion or --help must not wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.main import COMMANDS, main

ROOT = Path(__file__).parent.parent.parent
MOST_MODULES = 130
"""That --help loads, those of the interpreter included: Python 3.11 comes to 79."""
HEAVY = frozenset(
    {"cryptography", "duckdb", "jinja2", "prometheus_client", "pymysql", "rich", "textual"}
)


def loaded(code: str) -> set[str]:
    """Return the modules that are loaded after this code."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; {code}; print(*sys.modules)"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_help_imports_no_command_and_little_else() -> None:
    found = loaded("from stallscope.main import parser; parser(()).format_help()")
    assert "stallscope.main" in found
    assert not {name for name in found if name.startswith("stallscope.commands.")}
    assert "msgspec" not in found
    assert len(found) < MOST_MODULES, sorted(found)


def test_options_need_no_heavy_module() -> None:
    found = loaded("from stallscope.main import COMMANDS, parser; parser(COMMANDS)")
    assert found >= {f"stallscope.commands.{name}" for name in COMMANDS}
    assert not HEAVY & found


def test_every_command_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert [name for name, text in COMMANDS.items() if f"{name} {text}" not in out] == []

# SPDX-License-Identifier: Apache-2.0
"""Programs that are started get no passwords of the environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.base import package
from stallscope.base.childenv import child_environment
from stallscope.collectors.programs import Program

CHECKOUT = Path(__file__).parent.parent.parent
SECRETS = ("MYSQL_PWD", "PGPASSWORD", "SLACK_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPSGENIE_API_KEY")
KEPT = ("PATH", "PWD", "OLDPWD", "HOME", "STALLSCOPE_EVENT", "DEBUGINFOD_URLS", "http_proxy")
STARTS = {"Popen", "run", "check_output", "check_call", "call"}


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "SECRET")


def test_names_say_what_is_a_secret() -> None:
    assert child_environment(dict.fromkeys((*SECRETS, *KEPT), "x")) == dict.fromkeys(KEPT, "x")
    assert not set(SECRETS) & set(child_environment())


GIVEN = {"PATH": "/bin:/usr/bin", "MYSQL_PWD": "SECRET", "A": "b"}


@pytest.mark.parametrize("given", [None, GIVEN])
def test_hooks_do_not_see_them(given: dict[str, str] | None) -> None:
    result = Program(["env"], output=True, environment=given).run(60, leave_children=False)
    assert b"PATH=" in result.out
    assert b"SECRET" not in result.out
    assert (b"A=b" in result.out) is (given is not None)


def test_our_own_modules_do_not_see_them() -> None:
    _, environment = package.module_command("stallscope.main")
    assert "SECRET" not in environment.values()
    assert environment["PATH"]


def _started() -> Iterator[tuple[str, set[str | None]]]:
    """Yield where a program is started, and the keywords of the call."""
    for folder in ("stallscope", "collectors"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in STARTS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == "subprocess"
                ):
                    yield f"{path}:{node.lineno}", {one.arg for one in node.keywords}


def test_each_program_gets_an_environment_of_its_own() -> None:
    started = dict(_started())
    assert len(started) >= 7
    assert [where for where, keywords in started.items() if "env" not in keywords] == []

# SPDX-License-Identifier: Apache-2.0
"""``notify --test``, and what ``config check`` says of destinations."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope import main as program
from tests.support.receivers import receiver

__all__: list[str] = []


@pytest.mark.parametrize("bare", [False, True])
def test_a_test_has_all_facts_or_none(capsys: pytest.CaptureFixture[str], bare: bool) -> None:
    with receiver() as server:
        options = ["--bare"] if bare else []
        assert program.main(["notify", "--test", "--webhook", server.url, *options]) == 0
        first, last = (posted.json for posted in server.posted)
    assert capsys.readouterr().out == "webhook: sent, with its end\n"
    assert ("statement" in first["facts"], "trigger" in first["facts"]) == (not bare, not bare)
    assert (first["event"], last["event"]) == ("stall", "end")


@pytest.mark.parametrize(
    ("destination", "why"),
    [
        (
            'kind = "webhook"\nurl = "http://x/"\ntemplate = "TEMPLATE"',
            "fails for an alert without verdict, trigger, statement and path",
        ),
        ('kind = "command"\nrun = ["/nonexistent"]', "/nonexistent is not a program"),
        ('kind = "slack"\nurl-file = "/nonexistent"', None),
    ],
)
def test_config_check_tries_templates_and_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], destination: str, why: str | None
) -> None:
    template = tmp_path / "body"
    template.write_text("{{ facts.statement }}")
    file = tmp_path / "agent.toml"
    text = destination.replace("TEMPLATE", str(template))
    file.write_text(f'[server]\ntarget = "mariadbd"\n\n[[destination]]\n{text}\n')
    assert program.main(["config", "check", str(file)]) == (2 if why else 0)
    said = capsys.readouterr().out
    assert (why or "no errors") in said

# SPDX-License-Identifier: Apache-2.0
"""Pages of commands: they have every option, their man pages are sound, and each has its risks."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from pathlib import Path

import manpages
import pytest

from stallscope.commands import storage
from stallscope.main import COMMANDS, parser

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "docs" / "commands"
NAMES = [*COMMANDS, *(f"storage-{part}" for part in storage.PARTS)]
"""Commands, and the parts of `storage`: each has a page."""
EVERYWHERE = {"-h", "--help", "--debug"}
"""Options of every command, which stallscope(1) has."""
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]+|-[a-zA-Z](?![\w-]))")


def options_of(name: str) -> list[list[str]]:
    """Return the options that --help of a command, or of a part (storage-sync), has; each with all
    its spellings."""
    whole, _, part = name.partition("-")
    (commands,) = (
        action
        for action in parser([whole])._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    actions = commands.choices[whole]._actions
    if part:
        (parts,) = (each for each in actions if isinstance(each, argparse._SubParsersAction))
        actions = parts.choices[part]._actions
    elif f"{whole}-" not in " ".join(NAMES):  # its parts have no pages of their own
        for each in actions:
            if isinstance(each, argparse._SubParsersAction):
                parsers = each.choices.values()
                actions = [*actions, *(one for parser in parsers for one in parser._actions)]
    words = [list(action.option_strings) for action in actions]
    return [spellings for spellings in words if spellings and not EVERYWHERE & set(spellings)]


def section(text: str, title: str) -> str:
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return match.group(1) if match else ""


@pytest.mark.parametrize("name", NAMES)
def test_options_of_a_page_are_those_of_the_command(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    options = options_of(name)
    known = {spelling for spellings in options for spelling in spellings} | EVERYWHERE
    mentioned = set(_OPTION.findall(text))
    missing = ["/".join(spellings) for spellings in options if not mentioned & set(spellings)]
    assert not missing
    claimed = set(_OPTION.findall(section(text, "Synopsis")))
    # A row of a table, or a term, is about an option of this command.
    for line in re.findall(r"^(?:\| )?(`-.*)$", section(text, "Options"), re.M):
        claimed |= set(_OPTION.findall(line.partition(" | ")[0]))
    assert claimed <= known, sorted(claimed - known)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_begins_with_its_risks(name: str) -> None:
    titles = re.findall(r"^## (.*)$", (PAGES / f"{name}.md").read_text(), re.M)
    assert titles[:2] == ["Synopsis", "Risks"]
    assert {"Exit codes", "Overhead, measured"} <= set(titles)


def test_every_page_is_of_a_command() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(NAMES)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("man")
    return list(manpages.write(PAGES, "1.2.3", folder))


@pytest.mark.needs("mandoc")
def test_mandoc_finds_nothing_wrong(pages: list[Path]) -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *map(str, pages)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


@pytest.mark.large
@pytest.mark.needs("man")
def test_man_finds_nothing_wrong(pages: list[Path]) -> None:
    for path in pages:
        done = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", str(path)],
            env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "PAGER": "cat"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        assert "NAME" in done.stdout
        assert "1.2.3" in done.stdout


def test_what_roff_has_a_meaning_for() -> None:
    text = "# stallscope x\n\nSay.\n\n## Synopsis\n\n    .SH x 'a' \\n -p ~ ^\n\nIt's `.x` -- ▁.\n"
    page = manpages.page(text, "x", "1", "2026-01-01")
    assert "\n\\&.SH x \\(aqa\\(aq \\en \\-p \\(ti \\(ha\n" in page
    assert "\nIt\\(aqs \\fB.x\\fR \\-\\- \\[u2581].\n" in page
    assert page.startswith('.TH STALLSCOPE-X 1 "2026-01-01" "stallscope 1"')


def test_a_table_is_a_list_of_terms() -> None:
    text = "# x\n\nSay.\n\n## Options\n\n| o | what |\n| --- | --- |\n| `--a` | b [c](snap.md) |\n"
    page = manpages.page(text, "x", "1", "")
    assert page.endswith(".TP\n\\fB\\-\\-a\\fR\nb c (\\fBstallscope\\-snap\\fR(1))\n")

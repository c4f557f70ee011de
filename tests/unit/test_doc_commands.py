# SPDX-License-Identifier: Apache-2.0
"""Command lines in the docs and in --help: the program that they are for takes them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.main import COMMANDS, command_module, parser
from tests.support import docblocks
from tests.support.stall import STALLS

ROOT = Path(__file__).parent.parent.parent
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
OPERATORS = {"|", "||", "&&", ";", "&"}
# A synopsis says what may be there, not what is typed; tests of the man pages check those.
SYNOPSIS = re.compile(r"^## Synopsis\n.*?(?=^## |\Z)", re.M | re.S)
USAGE = re.compile(r"[A-Z]+\|[A-Z]+|\[[-A-Z]|\.\.\.$|…")


def examples(text: str) -> Iterator[str]:
    """Yield the lines of a page, or of an epilog, that are typed."""
    for line in re.sub(r"\\\n\s*", "", SYNOPSIS.sub("", text)).splitlines():
        typed = re.match(r"(?:    |  |\$ )(?:\$ )?((?:\./|/)?\S.*)$", line)
        if typed and "stallscope" in typed[1] and not USAGE.search(typed[1]):
            yield typed[1]


def invocations(line: str, program: str) -> Iterator[list[str]]:
    """Yield the arguments of each use of a program in a line of shell."""
    # Many spaces separate an example from its explanation.
    line = re.split(r"\s{3,}", line)[0]
    # What a substitution prints is one word; so is a here-document's name.
    line = re.sub(r"\$\([^)]*\)", "4711", line).replace("$PWD", "/tmp")
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = list(lexer)
    start = 0
    for index in range(len(words) + 1):
        if index == len(words) or words[index] in OPERATORS:
            yield from _invocation(words[start:index], program)
            start = index + 1


def _invocation(words: list[str], program: str) -> Iterator[list[str]]:
    while words[:1] == ["sudo"]:
        words = words[1:]
    if words and words[0] in (program, f"./scripts/{program}", f"scripts/{program}"):
        arguments = words[1:]
        for index, word in enumerate(arguments):
            if set(word) <= set("<>&"):
                arguments = arguments[:index]
                break
        yield arguments


def lines(path: Path) -> list[str]:
    return list(examples(path.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_are_understood(page: Path) -> None:
    for line in lines(page):
        for arguments in invocations(line, "stallscope"):
            understood(arguments, line)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_help_are_understood(name: str) -> None:
    epilog = command_module(name).EPILOG
    found = [
        arguments for line in examples(epilog) for arguments in invocations(line, "stallscope")
    ]
    assert found, f"--help of {name} has no example"
    for arguments in found:
        understood(arguments, name)


def understood(arguments: list[str], line: str) -> None:
    words = [word for word in arguments if not word.startswith("-")]
    if words:
        assert words[0] in COMMANDS, line
    with suppress(SystemExit):  # of --help
        parser(words[:1]).parse_args(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.parametrize("name", [probe.PROBE, probe.POKE])
def test_options_of_the_programs_are_known(page: Path, name: str) -> None:
    used = {
        word.partition("=")[0]
        for line in lines(page)
        for arguments in invocations(line, name)
        for word in arguments
        if word.startswith("--")
    }
    if used:
        program = str(probe.find(name))
        done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
        known = set(re.findall(r"--[a-z][a-z-]+", done.stdout))
        assert used <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sessions_can_be_run_and_their_pictures_are_there(page: Path) -> None:
    for block in docblocks.blocks(page.read_text()):
        assert block.commands
        if block.picture is not None:
            picture = page.parent / block.picture[1]
            assert picture.read_bytes().startswith(b"\x89PNG")
            assert picture.stat().st_size < 250_000
            assert f"({block.picture[1]})" in page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_stalls_and_files_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"scripts/stall ([a-z][a-z0-9-]*)", text)) <= STALLS.keys()
    links = re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", re.sub(r"`[^`\n]*`", "", text))
    assert [link for link in links if not (page.parent / link).exists()] == []
    tests = re.findall(r"`(tests/[\w./*-]+)`", text)
    assert [name for name in tests if not any(ROOT.glob(name.replace("NAME", "*")))] == []

# SPDX-License-Identifier: Apache-2.0
"""Completion, as the shells themselves do it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from stallscope.analyzers import catalog
from stallscope.commands.completion import SHELLS, script
from stallscope.main import COMMANDS, parser
from tests.support.servers import PATIENCE

ROOT = Path(__file__).parent.parent.parent
ID = "20261121T145012.345Z-mariadbd-4711"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    made = {}
    for shell in SHELLS:
        made[shell] = folder / f"_stallscope.{shell}"
        made[shell].write_text(script(shell, parser()))
    return made


def complete(scripts: dict[str, Path], home: Path, *words: str) -> set[str]:
    """Return what bash offers for the last word."""
    line = " ".join(shlex.quote(word) for word in ("stallscope", *words))
    code = f"""
        source {shlex.quote(str(scripts["bash"]))}
        COMP_WORDS=({line})
        COMP_CWORD={len(words)}
        COMP_LINE={shlex.quote(line)}
        COMP_POINT=${{#COMP_LINE}}
        _shtab_stallscope stallscope {shlex.quote(words[-1])} {shlex.quote(words[-2:][0])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {
        **os.environ,
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "PATH": f"{ROOT / 'scripts'}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", code],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_offers_commands(scripts: dict[str, Path], tmp_path: Path) -> None:
    assert complete(scripts, tmp_path, "") >= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ex",), {"export"}),
        (("export", "--by-"), {"--by-thread", "--by-state"}),
        (("export", "--to", "sp"), {"speedscope"}),
        (("completion", "z"), {"zsh"}),
        (("analyze", "st"), {"stall.jsonl"}),
        (("export", "st"), {"stall.jsonl"}),
    ],
)
def test_bash_offers_words_and_files(
    scripts: dict[str, Path], tmp_path: Path, words: tuple[str, ...], offered: set[str]
) -> None:
    (tmp_path / "stall.jsonl").touch()
    assert complete(scripts, tmp_path, *words) == offered


def test_bash_offers_signatures(scripts: dict[str, Path], tmp_path: Path) -> None:
    known = {signature.id for signature in catalog.load().signatures}
    assert complete(scripts, tmp_path, "signatures", "innodb-") == {
        name for name in known if name.startswith("innodb-")
    }


def test_incidents_are_those_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stallscope.main import main
    from stallscope.store import layout

    monkeypatch.setattr(layout, "reading_dest", lambda: tmp_path)
    assert main(["completion", "incidents"]) == 0
    assert capsys.readouterr().out.strip() == ""
    for name in (ID, "$(touch pwned)", ".new-x"):
        (tmp_path / layout.INCIDENTS / name).mkdir(parents=True)
    assert main(["completion", "incidents"]) == 0
    assert capsys.readouterr().out == f"{ID}\n"


def test_servers_are_those_that_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stallscope.collectors import processes
    from stallscope.main import main

    monkeypatch.setattr(processes, "databases", lambda: [(4711, "mysqld"), (12, "postgres")])
    assert main(["completion", "servers"]) == 0
    assert capsys.readouterr().out.split() == ["4711", "mysqld", "12", "postgres"]


@pytest.mark.needs("zsh")
def test_zsh_can_read_it(scripts: dict[str, Path]) -> None:
    subprocess.run(["zsh", "-n", str(scripts["zsh"])], check=True, capture_output=True)


@pytest.mark.needs("fish")
def test_fish_offers_options(scripts: dict[str, Path], tmp_path: Path) -> None:
    code = f"source {scripts['fish']}; complete -C 'stallscope export --by-'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    offered = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    assert offered == {"--by-thread", "--by-state"}

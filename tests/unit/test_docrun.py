# SPDX-License-Identifier: Apache-2.0
"""How a session of the docs is typed on another server than the one it was of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import docrun
from tests.support.docblocks import Command, DocError, blocks


def test_what_a_user_copies_is_that_of_the_server_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = docrun.Scene(tmp_path)
    assert scene.as_typed_here("stallscope snap -p 4711") == "stallscope snap -p 4711"
    folder = Path("/tmp/device/data/server")
    server = SimpleNamespace(pid=7, socket=folder / "s.sock", folder=folder)
    monkeypatch.setattr(docrun, "SqlServer", SimpleNamespace)
    monkeypatch.setattr(scene, "_server", server)
    assert scene.as_typed_here("stallscope snap -p 4711 -o a") == "stallscope snap -p 7 -o a"
    typed = scene.as_typed_here("mariadb --socket=/tmp/x/s.sock -e a | mariadb --socket=y")
    assert typed == f"mariadb --socket={folder}/s.sock -e a | mariadb --socket={folder}/s.sock"
    assert scene.as_typed_here("fsfreeze --unfreeze /x") == "fsfreeze --unfreeze /tmp/device/below"


def test_ids_are_those_that_were_printed_last(tmp_path: Path) -> None:
    scene = docrun.Scene(tmp_path)
    incident = "20261121T162506.765Z-mysqld-1556"
    scene.run("echo connection 3; echo connection 4", {})
    scene.run(f"echo {incident}", {})
    assert scene.as_typed_here('-e "KILL QUERY 99"') == '-e "KILL QUERY 3"'
    shown = scene.as_typed_here("incidents --dest store 20250101T000000.000Z-mariadbd-1")
    assert shown == f"incidents --dest store {incident}"


def test_a_command_is_repeated_until_it_prints_what_is_waited_for(tmp_path: Path) -> None:
    scene = docrun.Scene(tmp_path)
    line = "echo x >>count; wc -l <count"
    assert scene.run(line, {"until": "3"}) == ["3"]
    with pytest.raises(DocError, match="none of"):
        scene.run("echo never", {"until": "always"})
    with pytest.raises(DocError, match="ended with 7"):
        scene.run("exit 7", {})
    assert scene.run("exit 7", {"code": "7"}) == [""]
    with pytest.raises(DocError, match="no stall boredom"):
        scene.enter({"stall": "boredom"})


def test_a_page_is_rewritten_and_then_as_it_says(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```console\n$ echo one; echo 22\nold\n$ true\n```\n\nEnd.\n")
    (unlike,) = docrun.differences(page)
    assert "line 3" in unlike
    text, remarks = docrun.rewritten(page, pictures=False)
    assert remarks == []
    assert text == "Text.\n\n```console\n$ echo one; echo 22\none\n22\n$ true\n```\n\nEnd.\n"
    page.write_text(text)
    assert docrun.differences(page) == []


def test_only_the_last_command_is_repeated() -> None:
    block = blocks("<!-- run: until=x -->\n```console\n$ a\n$ b\n```\n")[0]
    assert docrun.context_of(block, block.commands[0]) == {}
    assert docrun.context_of(block, block.commands[1]) == {"until": "x"}
    assert block.commands[1] == Command("b", ())


def test_a_command_on_its_own_is_repeated_until_it_shows_all(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    line = "echo x >>count; seq $(wc -l <count)"
    page.write_text(f'<!-- run: until=2 shows="2; 4" -->\n```console\n$ {line}\n2\n4\n```\n')
    assert docrun.differences(page) == []


def test_a_server_is_asked_patiently(tmp_path: Path) -> None:
    scene = docrun.Scene(tmp_path)
    line = "echo ./scripts/stallscope snap -p 7 -o a"
    assert scene.run(line, {}) == ["./scripts/stallscope snap --sql-deadline 60 -p 7 -o a"]

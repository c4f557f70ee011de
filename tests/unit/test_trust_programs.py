# SPDX-License-Identifier: Apache-2.0
"""What another user can change is not run: of each key of a configuration, at each run, in PATH."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest

from stallscope.base import trust
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors import gdb, programs
from stallscope.collectors.triggers import settings
from stallscope.commands import _config, _notify
from stallscope.fleet.settings import ShipSettings
from stallscope.notify import destinations
from stallscope.notify.settings import Destination, WebhookSettings

KEYS = {
    "after-collect": '[plugin]\nafter-collect = ["{}"]',
    "after-stalk": '[plugin]\nafter-stalk = ["{}"]',
    "before-collect": '[plugin]\nbefore-collect = ["{}"]',
    "before-stalk": '[plugin]\nbefore-stalk = ["{}"]',
    "command": '[notify]\ncommand = ["{}"]',
    "notify-command": '[agent]\nnotify-command = "{} x"',
    "run": '[[command]]\nname = "c"\nrun = ["{}"]',
}
MORE = {
    "destination": '[[destination]]\nkind = "command"\nrun = ["{}", "x"]',
    "script": '[[destination]]\nkind = "command"\nrun = ["/bin/sh", "-e", "{}"]',
    "env": '[[command]]\nname = "c"\nrun = ["/usr/bin/env", "X=1", "python3", "{}"]',
}
LISTS = {"tags", "teams", "to", "uncache", "url"}
"""Keys of lists that are no commands."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o777)
    return path


def config(folder: Path, text: str) -> _config.Examined:
    path = folder / "orders.toml"
    path.write_text(f'{text}\n[server]\ntarget = "mysqld"\n')
    path.chmod(0o640)
    return _config.examine(path)


def test_all_keys_that_run_a_program_are_here() -> None:
    tables = (
        *(getattr(settings, name) for name in settings.__all__),
        *(ShipSettings, *typing.get_args(Destination)),
    )
    structs = [table for table in tables if isinstance(table, type)]
    lists = {
        field.encode_name
        for struct in structs
        if issubclass(struct, msgspec.Struct)
        for field in msgspec.structs.fields(struct)
        if "list[str]" in str(field.type)
    }
    assert lists - LISTS | {"notify-command"} == set(KEYS) == _config.COMMANDS


@pytest.mark.parametrize("text", [*KEYS.values(), *MORE.values()], ids=[*KEYS, *MORE])
def test_a_program_of_others_is_an_error(text: str, program: Path, tmp_path: Path) -> None:
    text = text.replace("{}", str(program))
    (error,) = config(tmp_path, text).errors
    assert f"{program} can be written to by others" in error
    assert error.startswith(f"{tmp_path / 'orders.toml'}:")
    program.chmod(0o755)
    assert config(tmp_path, text).errors == ()


def test_a_folder_of_others_is_an_error(program: Path, tmp_path: Path) -> None:
    program.chmod(0o755)
    assert _notify.command_words(f"{program} x") == (str(program), "x")
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match=f"--notify-command: .*{tmp_path} can be written to"):
        _notify.command_words(f"{program} x")


def test_it_is_checked_before_each_run(program: Path) -> None:
    assert "can be written to by others" in str(programs.run_for_event([str(program)], {}, 5))
    with pytest.raises(PermissionError):
        programs.Program(["/bin/sh", str(program)], output=True)
    program.chmod(0o755)
    assert programs.run_for_event([str(program)], {}, 5) is None


def test_a_program_of_others_in_path_is_left_out(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "has_privileges", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    program.rename(tmp_path / "gdb")
    with pytest.raises(StallscopeError, match="gdb is not installed"):
        gdb.find()
    assert "is not used" in (trust.command_reason(["gdb"]) or "")
    (tmp_path / "gdb").chmod(0o755)
    assert trust.command_reason(["gdb"]) is None
    assert gdb.find() == str(tmp_path / "gdb")


def test_a_template_of_others_is_not_read(program: Path) -> None:
    pytest.importorskip("jinja2")
    made = WebhookSettings("w", url="https://h/", template=str(program))
    with pytest.raises(UsageError, match=r"template .* can be written to by others"):
        destinations.make(made)

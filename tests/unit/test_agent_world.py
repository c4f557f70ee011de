# SPDX-License-Identifier: Apache-2.0
"""What the agent's loop meets outside, as its commands make it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from stallscope.agent.sources import Sources
from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.processes import Server
from stallscope.commands import _agent
from stallscope.main import parser
from stallscope.store import Store

__all__: list[str] = []


@pytest.fixture
def options(tmp_path: Path) -> Path:
    """Return an option file that can be read, for now."""
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nuser=known\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def world(tmp_path: Path, options: Path) -> _agent.World:
    args = parser(["watch"]).parse_args(["watch", "--defaults-file", str(options)])
    return _agent.World(args, database(), Store.open(tmp_path / "store"), tmp_path, None)


def database() -> Server:
    """Return this process, as if it were a server."""
    own = processes.read(os.getpid())
    assert own is not None
    main = msgspec.structs.replace(own, exe="/usr/sbin/mariadbd", comm="mariadbd")
    return Server(main, (main.pid,), sockets=("/nowhere/s.sock",))


def asked(world: _agent.World) -> Sources:
    args = parser(["watch"]).parse_args(["watch"])
    found = world.sources(database(), _agent.settings_of(args))
    found.close()
    return found


def test_option_files_that_break_later_leave_the_rest_of_the_world(
    world: _agent.World, options: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = asked(world)
    assert first.sessions is not None
    options.unlink()
    later = asked(world)
    assert later.sessions is None
    names = {collector.name for collector in later.collectors}
    assert names < {collector.name for collector in first.collectors}
    assert {"load", "process"} <= names
    told = capsys.readouterr().err
    assert "not asked over SQL" in told
    assert str(options) in told
    options.write_text("[client]\nuser=known\n")
    assert asked(world).sessions is not None


def test_option_files_that_are_broken_at_the_start_are_an_error(
    world: _agent.World, options: Path
) -> None:
    options.unlink()
    with pytest.raises(StallscopeError, match=str(options)):
        asked(world)

# SPDX-License-Identifier: Apache-2.0
"""What surrounds the agent's loop, as its commands make it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from stallscope.agent.output import LineWriter
from stallscope.agent.sources import Sources
from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.processes import Server
from stallscope.collectors.triggers import triggerfile
from stallscope.commands import _agent, _config
from stallscope.main import parser
from stallscope.store import Store
from tests.unit.agentlog import Messages


@pytest.fixture
def options(tmp_path: Path) -> Path:
    """Return an option file that can be read, for now."""
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nuser=known\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def environment(tmp_path: Path, options: Path) -> _agent.CommandEnvironment:
    args = parser(["watch"]).parse_args(
        ["watch", "-p", "mariadbd", "--defaults-file", str(options)]
    )
    (settings,) = _config.load(args).servers
    return _agent.CommandEnvironment(
        lambda: settings,
        database(),
        Store.open(tmp_path / "store"),
        tmp_path,
        LineWriter(sys.stdout),
        tmp_path,
    )


def database() -> Server:
    """Return this process, as if it were a server."""
    own = processes.read(os.getpid())
    assert own is not None
    main = msgspec.structs.replace(own, exe="/usr/sbin/mariadbd", comm="mariadbd")
    return Server(main, (main.pid,), sockets=("/nowhere/s.sock",))


def asked(environment: _agent.CommandEnvironment) -> Sources:
    found = environment.sources(database(), triggerfile.defaults(), lambda text: None)
    found.close()
    return found


def test_option_files_that_break_later_leave_the_rest(
    environment: _agent.CommandEnvironment, options: Path
) -> None:
    first = asked(environment)
    assert first.sessions is not None
    options.unlink()
    with Messages() as log:
        later = asked(environment)
    assert later.sessions is None
    names = {collector.name for collector in later.collectors}
    assert names < {collector.name for collector in first.collectors}
    assert {"load", "process"} <= names
    (logged,) = log.messages
    assert "SQL is not used until" in logged
    assert str(options) in logged
    options.write_text("[client]\nuser=known\n")
    assert asked(environment).sessions is not None


def test_option_files_that_are_broken_at_the_start_are_an_error(
    environment: _agent.CommandEnvironment, options: Path
) -> None:
    options.unlink()
    with pytest.raises(StallscopeError, match=str(options)):
        asked(environment)

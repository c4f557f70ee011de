# SPDX-License-Identifier: Apache-2.0
"""An agent whose server ends is not given another user's program in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.agents import AgentProcess, agent
from tests.support.impostors import PERSON, SERVICE, impostor, open_folder

__all__: list[str] = []

pytestmark = pytest.mark.needs("root")

PASSWORD = "hunter2-secret"
SOCKETS = {"mariadbd": "s.sock", "postgres": ".s.PGSQL.5432"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


def watch(program: str, folder: Path, dest: Path) -> AbstractContextManager[AgentProcess]:
    options = dest / "my.cnf"
    options.write_text(f"[client]\nuser=me\npassword={PASSWORD}\n")
    given = ["--defaults-file", options] if program == "mariadbd" else []
    return agent(
        program,
        dest / "store",
        *("--socket", folder / SOCKETS[program], "--no-probe", "--poll-interval", "0.1", *given),
        ready=None,
        env={"PGPASSWORD": PASSWORD, "PGUSER": "me"},
    )


@pytest.mark.parametrize("program", SOCKETS)
def test_a_strangers_program_of_its_name_is_said_and_gets_nothing(
    program: str, folder: Path, tmp_path: Path
) -> None:
    """At the first start, after the server's end, and at the agent's own restart."""
    first = f"{program} (pid %d) is of user {PERSON}: if it is meant, say --server-user {PERSON}"
    later = f"{program} (pid %d) is of user {PERSON}, and the server is of user"
    with watch(program, folder, tmp_path) as found:
        with impostor(folder, program) as stranger:
            found.wait_said("not watched: " + first % stranger.pid)
            assert stranger.end() == b""
        with impostor(folder, program, user=SERVICE) as server:
            found.wait_said(f"ready to capture {program} (pid {server.pid})")
        found.wait_said(f"{program} (pid {server.pid}) has ended")
        with impostor(folder, program) as stranger:
            found.wait_said("not watched: " + later % stranger.pid)
            assert stranger.end() == b""
        with impostor(folder, program, user=SERVICE) as server:
            found.wait_said(f"watching {program} (pid {server.pid}")
    with impostor(folder, program) as stranger, watch(program, folder, tmp_path) as found:
        found.wait_said("not watched: " + later % stranger.pid)
        assert stranger.end() == b""

# SPDX-License-Identifier: Apache-2.0
"""A server whose program was removed or replaced under it still gets its names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.shots import take, threads_with, unharmed
from tests.support.servers import MariaDB, program, wait_until
from tests.support.servers.clients import idle_connections
from tests.support.servers.tasks import at_rest

pytestmark = pytest.mark.needs("root", "bpf", "mariadb")


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    """Put another program in its place, as an upgrade does."""
    other = path.with_suffix(".new")
    shutil.copy(str(program("true")), other)
    other.rename(path)


@pytest.mark.parametrize("change", [remove, replace])
def test_server_without_its_file(
    change: Callable[[Path], None], tmp_path: Path, open_folder: Path
) -> None:
    executable = open_folder / "mariadbd"
    shutil.copy(str(program("mariadbd")), executable)
    with MariaDB(executable=str(executable)) as server, idle_connections(server, 5):
        wait_until(lambda: at_rest(server.pid), "each connection waits for a statement")
        change(executable)
        with unharmed(server):
            capture = take(tmp_path, "-p", server.pid).capture
        (process,) = capture.processes
        assert process.exe_deleted
        (module,) = {m for m in capture.modules if m.path.endswith("/mariadbd")}
        assert module.deleted
        assert module.error is None
        assert len(threads_with(capture, "do_command", "handle_one_connection")) >= 5
    executable.unlink(missing_ok=True)

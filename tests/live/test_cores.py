# SPDX-License-Identifier: Apache-2.0
"""The stacks in a server's core, and the unwind information of its program, as others read them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers import MEMORY, MariaDB, MySQL55, MySQL97, SqlServer, program
from tests.support.servers.clients import idle_connections
from tests.support.servers.mysql55 import base_folder
from tests.support.servers.mysql97 import root_folder
from tests.support.targets import build_folder
from tests.support.unwinders import assert_same_stacks, checked, core_in, whole_cores

__all__: list[str] = []

CONNECTIONS = 20
# Anonymous memory, and the first page of each file. The files themselves are here.
FILTER = "0x11"
SERVERS: dict[str, Callable[[], SqlServer]] = {
    "mariadb": MariaDB,
    "mysql55": lambda: MySQL55(parent=MEMORY),
    "mysql97": lambda: MySQL97("--innodb-flush-method=nosync"),
}


def file_of(kind: str) -> Path:
    """Return the program of a kind of server."""
    if kind == "mariadb":
        return Path(program("mariadbd") or "")
    return base_folder() / "mysqld" if kind == "mysql55" else root_folder() / "usr/sbin/mysqld"


def dump(server: SqlServer) -> Path:
    """Let the kernel end the server and write its core; gdb would write what was never touched."""
    Path(f"/proc/{server.pid}/coredump_filter").write_text(FILTER)
    folder = os.open(f"/proc/{server.pid}/cwd", os.O_PATH | os.O_DIRECTORY)
    try:
        os.kill(server.pid, signal.SIGXCPU)  # no server has a handler for it
        server.child.wait()
        inside = Path(f"/proc/self/fd/{folder}")
        core = inside.readlink() / core_in(inside).name
    finally:
        os.close(folder)
    return root_folder() / core.relative_to("/") if isinstance(server, MySQL97) else core


@pytest.mark.needs("root", "gdb", "cores")
@pytest.mark.parametrize(
    "kind",
    [
        "mysql97",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("mariadb", "mysql55")),
    ],
)
def test_same_stacks(kind: str, require: Callable[..., None]) -> None:
    require(kind)
    sysroot = root_folder() if kind == "mysql97" else None
    with whole_cores(), SERVERS[kind]() as server:
        with idle_connections(server, CONNECTIONS):
            core = dump(server)
        capture = assert_same_stacks(core, file_of(kind), sysroot)
    assert len(capture.threads) > CONNECTIONS


@pytest.mark.parametrize("kind", SERVERS)
def test_same_rows(kind: str, require: Callable[..., None]) -> None:
    require(kind)
    checked(build_folder() / "tests/c/test-cfi_libdw", file_of(kind))

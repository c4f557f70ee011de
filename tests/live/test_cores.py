# SPDX-License-Identifier: Apache-2.0
"""The stacks in a server's core, and the unwind information of its program, as others read them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.model import capturefile
from stallscope.model.capture import Thread
from tests.live.shots import CHECKOUT, run
from tests.support.servers import MEMORY, MariaDB, MySQL55, MySQL97, SqlServer, program
from tests.support.servers.clients import idle_connections
from tests.support.servers.mysql55 import base_folder
from tests.support.servers.mysql97 import root_folder
from tests.support.targets import build_folder

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "gdb", "cores")

FRAMES = CHECKOUT / "tests/live/frames.gdb"
CONNECTIONS = 20
LONGEST = 300
# Anonymous memory, and the first page of each file. The files themselves are here.
FILTER = "0x11"
SERVERS: dict[str, Callable[[], SqlServer]] = {
    "mariadb": MariaDB,
    "mysql55": lambda: MySQL55(parent=MEMORY),
    "mysql97": lambda: MySQL97("--innodb-flush-method=nosync"),
}


def sysroot(server: SqlServer) -> list[str]:
    return [str(root_folder())] if isinstance(server, MySQL97) else []


def outside(server: SqlServer, path: Path) -> Path:
    """Return the name here of a path of the server's root."""
    return root_folder() / path.relative_to("/") if isinstance(server, MySQL97) else path


def file_of(kind: str) -> Path:
    """Return the program of a kind of server."""
    if kind == "mariadb":
        return Path(program("mariadbd") or "")
    return base_folder() / "mysqld" if kind == "mysql55" else root_folder() / "usr/sbin/mysqld"


@pytest.fixture
def whole_cores() -> Iterator[None]:
    """Let programs that are started meanwhile write cores of any size."""
    before, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (before, most))


def checked(*command: str | Path) -> str:
    """Return what a program prints that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dump(server: SqlServer, core: Path) -> None:
    """Let the kernel end the server and write its core; gdb would write what was never touched."""
    Path(f"/proc/{server.pid}/coredump_filter").write_text(FILTER)
    folder = os.open(f"/proc/{server.pid}/cwd", os.O_PATH | os.O_DIRECTORY)
    try:
        os.kill(server.pid, signal.SIGXCPU)  # no server has a handler for it
        server.child.wait()
        inside = Path(f"/proc/self/fd/{folder}")
        (written,) = [path for path in inside.iterdir() if path.name.split(".")[0] == "core"]
        core.symlink_to(outside(server, inside.readlink() / written.name))
    finally:
        os.close(folder)


def gdb_counters(exe: Path, core: Path, roots: list[str]) -> dict[int, list[int]]:
    """Return the program counters of each thread of a core, as gdb has them."""
    command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off"]
    for root in roots:
        command += ["-iex", f"set sysroot {root}"]
    printed = checked(*command, exe, core, "-x", FRAMES)
    (line,) = [line for line in printed.splitlines() if line.startswith("FRAMES ")]
    return {
        int(tid): counters
        for tid, (_, _, counters) in json.loads(line.removeprefix("FRAMES ")).items()
    }


def counters(thread: Thread) -> list[int | None]:
    return [frame.pc for frame in thread.frames]


@pytest.mark.usefixtures("whole_cores")
@pytest.mark.parametrize("kind", SERVERS)
def test_same_stacks(kind: str, tmp_path: Path, require: Callable[..., None]) -> None:
    require(kind)
    core, file = tmp_path / "core", tmp_path / "core.stall"
    exe = file_of(kind)
    with SERVERS[kind]() as server:
        with idle_connections(server, CONNECTIONS):
            dump(server, core)
        roots = sysroot(server)
        checked(build_folder() / "tests/c/test-core_libunwind", core, exe, *roots)
        options = [f"--sysroot={root}" for root in roots]
        run("snap", "--core", core, "--exe", exe, *options, "-o", file)
        theirs = gdb_counters(exe, core, roots)
    capture = capturefile.read(file)
    assert len(capture.threads) > CONNECTIONS
    assert {thread.tid: counters(thread) for thread in capture.threads} == theirs


@pytest.mark.parametrize("kind", SERVERS)
def test_same_rows(kind: str, require: Callable[..., None]) -> None:
    require(kind)
    checked(build_folder() / "tests/c/test-cfi_libdw", file_of(kind))

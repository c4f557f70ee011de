# SPDX-License-Identifier: Apache-2.0
"""A server that stands still as a whole is no healthy one: stopped by a signal, frozen by a cgroup.

What the lines say is pasted, and the server must answer again.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.shots import run, unharmed
from tests.support.cgroups import ROOT
from tests.support.servers import MEMORY, MariaDB, wait_until
from tests.support.stall import STALLS
from tests.support.stalls.processlist import running

BACKENDS = ("bpf", "proc")


@pytest.fixture(scope="module")
def server(require: Callable[..., None]) -> Iterator[MariaDB]:
    require("root", "bpf", "mariadb")
    with MariaDB(parent=MEMORY) as found:
        yield found


def in_state(pid: int, letter: str) -> bool:
    """Return whether all threads are in this state, as the kernel shows it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(") ")[2][0] == letter for task in tasks)


@contextlib.contextmanager
def frozen(pid: int, folder: Path) -> Iterator[None]:
    """Freeze the process in a group of its own; ``folder``: where groups are made."""
    group = folder / f"stallscope-freeze-{os.getpid()}"
    old = not (folder / "cgroup.controllers").exists()
    name, on, off = ("freezer.state", "FROZEN", "THAWED") if old else ("cgroup.freeze", "1", "0")
    group.mkdir()
    (group / "cgroup.procs").write_text(str(pid))
    try:
        (group / name).write_text(on)
        if old:
            wait_until(lambda: (group / name).read_text() == "FROZEN\n", "it is frozen")
        else:
            wait_until(lambda: "frozen 1" in (group / "cgroup.events").read_text(), "it is frozen")
        yield
    finally:
        (group / name).write_text(off)
        (folder / "cgroup.procs").write_text(str(pid))
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def freezers() -> list[Path]:
    """Return where this machine can make groups that freeze."""
    found = [ROOT / "freezer"] if (ROOT / "freezer" / "cgroup.procs").exists() else []
    return found + [
        folder for folder in (ROOT, ROOT / "unified") if (folder / "cgroup.controllers").exists()
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_server_goes_on_by_what_is_pasted(server: MariaDB, backend: str) -> None:
    with unharmed(server):
        os.kill(server.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: in_state(server.pid, "T"), "all threads are stopped")
            done = run("snap", "-p", server.pid, "--backend", backend)
            lines = done.stdout.splitlines()
            assert "the whole server stands still" in " ".join(lines[:2])
            assert any("[process-stopped]" in line for line in lines)
            (at,) = [i for i, line in enumerate(lines) if line == "To end it, paste in a shell:"]
            assert lines[at + 1].strip() == f"kill -CONT {server.pid}"
            subprocess.run(["sh", "-c", lines[at + 1]], check=True)
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_frozen_server_is_named(server: MariaDB, backend: str) -> None:
    folders = freezers()
    assert folders, "this kernel has no cgroups"
    for folder in folders:
        with unharmed(server):
            with frozen(server.pid, folder):
                done = run("snap", "-p", server.pid, "--backend", backend, "--no-sql")
            assert "[process-frozen]" in done.stdout
            assert "the whole server stands still" in " ".join(done.stdout.split())


def test_a_frozen_file_system_is_thawed_by_what_is_pasted(require: Callable[..., None]) -> None:
    require("root", "bpf", "mariadb", "freeze")
    stall = STALLS["frozen-files-mariadb"]
    with stall.started() as (server, made), made:
        connections = server.held_connection_ids()
        done = run("snap", "-p", server.pid)
        lines = done.stdout.splitlines()
        text = " ".join(done.stdout.split())
        assert re.search(
            r"blocked in \w+ of …/data/\w+ on /dev/loop\d+ \(ext4, mounted at", text
        ), text
        (at,) = [i for i, line in enumerate(lines) if line == "To end it, paste in a shell:"]
        subprocess.run(["sh", "-c", lines[at + 1]], check=True)
        # What waits until it is thawed goes on, and nothing is lost.
        wait_until(lambda: running(server, "INSERT") == 0, "all inserts are done")
        assert server.query("SELECT COUNT(*) FROM diary.journal0") == ((2,),)
        assert connections <= server.connection_ids()


def test_a_server_that_lives_is_called_neither(server: MariaDB) -> None:
    done = run("snap", "-p", server.pid, "--json")
    assert "process-" not in done.stdout

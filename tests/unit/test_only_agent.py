# SPDX-License-Identifier: Apache-2.0
"""One agent a server and store, as the commands do it, beside processes that are no database."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.agent.onlyagent import only_agent, only_pass
from stallscope.collectors import processes
from stallscope.collectors.processes import Selector
from stallscope.collectors.serverkey import server_key
from stallscope.store import layout
from stallscope.store.serverstate import AGENT_LOCK, ServerBusy, ServerState
from tests.support.agents import CHECKOUT
from tests.support.servers.waiting import wait_until

FEATURES = ("--no-sql", "--no-probe")


@contextlib.contextmanager
def target(folder: Path) -> Iterator[int]:
    """A program that sleeps, by a name of its own: two of them are two servers."""
    path = folder / f"server-{len(list(folder.iterdir()))}"
    shutil.copy("/bin/sleep", path)
    with subprocess.Popen([path, "3600"]) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def words(command: str, pid: int, dest: Path, *more: str) -> list[str]:
    argv = [sys.executable, "-m", "stallscope", command, "-p", str(pid), "--dest", str(dest)]
    return [*argv, *FEATURES, *more]


@contextlib.contextmanager
def running(command: str, pid: int, dest: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent that holds its lock."""
    server = processes.find_server(str(pid), Selector())
    lock = dest / layout.SERVERS / server_key(server) / AGENT_LOCK
    length = "--duration" if command == "watch" else "--seconds"
    with subprocess.Popen(
        words(command, pid, dest, length, "600"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=CHECKOUT,
    ) as agent:
        try:
            wait_until(lambda: lock.exists() and lock.read_bytes() != b"", "the agent's lock")
            yield agent
        finally:
            agent.terminate()


def run(command: str, pid: int, dest: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(command, pid, dest, *more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=CHECKOUT,
    )


def test_a_second_agent_says_who_watches(tmp_path: Path) -> None:
    dest, programs = tmp_path / "store", tmp_path / "bin"
    programs.mkdir()
    with target(programs) as pid, running("watch", pid, dest) as agent:
        second = run("watch", pid, dest)
        assert second.returncode == 1
        lines = second.stderr.splitlines()
        assert len(lines) == 1
        assert f"is already watched by pid {agent.pid} on {os.uname().nodename}" in lines[0]
        beside = run("cron", pid, dest, "--seconds", "600")
        assert beside.returncode == 0
        assert f"already watched by pid {agent.pid}" in beside.stderr
        assert run("watch", pid, dest, "--dry-run", "--once").returncode == 0
        assert run("watch", pid, tmp_path / "other", "--once").returncode == 0


def test_two_servers_have_passes_at_the_same_time(tmp_path: Path) -> None:
    dest, programs = tmp_path / "store", tmp_path / "bin"
    programs.mkdir()
    with (
        target(programs) as one,
        target(programs) as two,
        running("cron", one, dest) as first,
    ):
        again = run("cron", one, dest, "--seconds", "600")
        assert again.returncode == 0
        assert f"is still running: pid {first.pid} on" in again.stderr
        other = run("cron", two, dest, "--seconds", "1")
        assert other.returncode == 0
        assert "running" not in other.stderr
        first.terminate()
        first.wait()
        keys = os.listdir(dest / layout.SERVERS)
        assert len(keys) == 2
        assert all((dest / layout.SERVERS / key / "state.json").exists() for key in keys)


def test_a_lock_that_cannot_be_had_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / layout.SERVERS).write_text("in the way\n")
    server = processes.find_server(str(os.getpid()), Selector())
    with only_agent(tmp_path, server) as state:
        assert state is None
    assert "another agent may watch the same server" in caplog.text


def test_both_locks_of_a_pass_are_released(tmp_path: Path) -> None:
    server = processes.find_server(str(os.getpid()), Selector())
    held = ServerState.open(tmp_path, server_key(server)).lock(AGENT_LOCK)
    with pytest.raises(ServerBusy, match="already watched"), only_pass(tmp_path, server):
        pass
    held.release()
    with only_pass(tmp_path, server) as state:
        assert state is not None
        with pytest.raises(ServerBusy, match="previous pass"), only_pass(tmp_path, server):
            pass
    with only_agent(tmp_path, server):
        pass

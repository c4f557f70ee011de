# SPDX-License-Identifier: Apache-2.0
"""One agent a server and store, as the commands do it, beside processes that are no database."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.agent.onlyagent import only_agent, only_pass
from stallscope.collectors import processes
from stallscope.collectors.processes import Selector
from stallscope.collectors.serverkey import server_key
from stallscope.store import layout
from stallscope.store.serverstate import AGENT_LOCK, ServerBusy, ServerState
from tests.support.agents import CHECKOUT
from tests.support.servers.waiting import PATIENCE, wait_until


def words(command: str, pid: int, dest: Path, *more: str) -> list[str]:
    argv = [sys.executable, "-m", "stallscope", command, "-p", str(pid), "--dest", str(dest)]
    return [*argv, "--no-sql", "--no-probe", *more]


@contextlib.contextmanager
def running(pid: int, dest: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent that holds its lock."""
    server = processes.find_server(str(pid), Selector())
    lock = dest / layout.SERVERS / server_key(server) / AGENT_LOCK
    argv = words("watch", pid, dest, "--duration", "600")
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, cwd=CHECKOUT) as agent:
        try:
            wait_until(lambda: lock.exists() and lock.read_bytes() != b"", "the agent's lock")
            yield agent
        finally:
            agent.terminate()


def run(*args: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*args), capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=CHECKOUT
    )


@pytest.mark.large
def test_a_second_agent_says_who_watches(tmp_path: Path) -> None:
    dest = tmp_path / "store"
    with subprocess.Popen(["sleep", "3600"]) as target, running(target.pid, dest) as agent:
        second = run("watch", target.pid, dest)
        assert second.returncode == 1
        (line,) = second.stderr.splitlines()
        assert f"is already watched by pid {agent.pid} on {os.uname().nodename}" in line
        beside = run("cron", target.pid, dest, "--seconds", "600")
        assert beside.returncode == 0
        assert f"already watched by pid {agent.pid}" in beside.stderr
        assert run("watch", target.pid, dest, "--dry-run", "--once").returncode == 0
        assert run("watch", target.pid, tmp_path / "other", "--once").returncode == 0
        target.kill()


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

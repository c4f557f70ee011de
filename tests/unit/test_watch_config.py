# SPDX-License-Identifier: Apache-2.0
"""``watch --config`` and ``cron --config`` as processes, on servers that are copies of sleep(1)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.base.errors import Exit
from tests.support.agents import CHECKOUT, AgentProcess
from tests.support.servers.waiting import PATIENCE, wait_until

TWO = """\
poll-interval = 0.1
[agent]
no-probe = true
dest = "STORE/store"
prometheus = "STORE/agent.prom"
[sql]
no-sql = true
[[server]]
name = "first"
target = "NAME-a"
[[server]]
name = "second"
target = "NAME-b"
"""


class Servers:
    """Programs with names of their own that run until the test ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"s{os.getpid() % 100_000}"
        """Part of the names: /proc shows 15 characters of them."""
        self._stack = contextlib.ExitStack()

    def start(self, which: str) -> subprocess.Popen[bytes]:
        program = self.folder / f"{self.name}-{which}"
        if not program.exists():
            shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
        process = self._stack.enter_context(subprocess.Popen([program, "1000"]))
        self._stack.callback(process.kill)
        return process

    def config(self, text: str = TWO) -> Path:
        path = self.folder / "two.toml"
        path.write_text(text.replace("NAME", self.name).replace("STORE", str(self.folder)))
        path.chmod(0o640)
        return path

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.close()


@contextlib.contextmanager
def agent(*words: object) -> Iterator[AgentProcess]:
    with subprocess.Popen(
        [sys.executable, "-m", "stallscope", *map(str, words)],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        found = AgentProcess(process)
        try:
            yield found
        finally:
            found.kill()


def ended(*words: object) -> tuple[int, list[str]]:
    """Run a command to its end; return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "stallscope", *map(str, words)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.large
def test_one_agent_watches_servers_that_come_and_reloads(servers: Servers, tmp_path: Path) -> None:
    servers.start("a")
    path = servers.config()
    with agent("watch", "--config", path) as watch:
        watch.wait_said("first: ready to capture")
        watch.wait_said(f"second: waiting for {servers.name}-b: no process named {servers.name}-b")
        one, other = servers.start("b"), servers.start("b")
        watch.wait(
            lambda: any("second: ready" in line or "2 servers" in line for line in watch.said),
            "the second server",
        )
        other.kill()
        watch.wait_said("second: ready to capture")
        metrics = tmp_path / "agent.prom"
        for which in ("a", "b"):
            label = f'server="{servers.name}-{which}"'
            wait_until(lambda: label in metrics.read_text(), label)  # noqa: B023
        path.write_text(path.read_text().replace("no-probe = true", 'no-probe = "x"'))
        watch.process.send_signal(signal.SIGHUP)
        watch.wait_said(f"{path}:3: agent.no-probe: must be true or false; keeping the previous")
        servers.config(TWO.replace("no-probe", 'webhook = "http://[::1]:1/"\nallow-gdb'))
        watch.process.send_signal(signal.SIGHUP)
        watch.wait_said("these settings change when the agent is restarted: allow-gdb, no-probe")
        watch.wait_said("second: triggers reloaded")
        one.kill()
        watch.wait_said(f"{servers.name}-b (pid {one.pid}) has ended")
        assert watch.stop() == Exit.DONE
    assert not any("Traceback" in line for line in watch.said)
    history = tmp_path / "store" / "history"
    assert not any("locked" in line for line in watch.said), history
    assert list((tmp_path / "store" / "spool").iterdir()) == []


def test_a_server_that_does_not_run_is_waited_for(tmp_path: Path) -> None:
    words = ["-p", "no-such-server", "--dest", tmp_path / "store", "--no-sql", "--no-probe"]
    with agent("watch", *words) as watch:
        watch.wait_said("waiting for no-such-server: no process named no-such-server")
        assert watch.stop() == Exit.DONE
    with agent("watch", "--once", "--wait", *words) as watch:
        watch.wait_said("waiting for no-such-server: no process named no-such-server")
        assert watch.stop() == Exit.DONE


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-p", "no-such-server", "--once"], "no process named no-such-server"),
        (["-p", "no-such-server", "--duration", "60"], "no process named no-such-server"),
        (["-p", "999999999"], "no process 999999999"),
    ],
)
def test_a_short_run_and_a_pid_wait_for_nothing(words: list[str], why: str, tmp_path: Path) -> None:
    code, said = ended("watch", *words, "--dest", tmp_path / "store", "--no-sql", "--no-probe")
    assert code == Exit.FAILED
    assert len(said) == 1
    assert why in said[0]
    assert not (tmp_path / "store").exists()


def test_several_servers_of_the_name_are_an_error_at_the_start(
    servers: Servers, tmp_path: Path
) -> None:
    servers.start("a")
    servers.start("a")
    words = ["-p", f"{servers.name}-a", "--dest", tmp_path / "store", "--no-sql", "--no-probe"]
    code, said = ended("watch", *words)
    assert code == Exit.FAILED
    assert "2 servers answer to" in said[-1]


def test_a_pass_at_a_configured_server(servers: Servers, tmp_path: Path) -> None:
    servers.start("a")
    path = servers.config(TWO.partition("[[server]]")[0] + '[server]\ntarget = "NAME-a"\n')
    code, said = ended("cron", "--config", path, "--seconds", "1", "--fail-on-stall")
    assert code == Exit.DONE, said
    assert any("ready to capture" in line for line in said)
    assert (tmp_path / "agent.prom").exists()


def test_a_mistake_in_the_file_is_a_usage_error(servers: Servers) -> None:
    path = servers.config("x = 1\ny = 2\n" + TWO)
    code, said = ended("watch", "--config", path)
    assert code == Exit.USAGE
    (line,) = said
    assert f"{path}:1: unknown key 'x'" in line
    assert line.endswith(f"and 1 more: stallscope config check {path}")

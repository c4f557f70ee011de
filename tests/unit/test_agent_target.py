# SPDX-License-Identifier: Apache-2.0
"""The server that the agent watches: its end, its next process, and what that becomes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stallscope.agent.clock import NS
from stallscope.agent.target import Target
from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.processes import NotRunningError, Server
from tests.unit.agentlog import Messages

LISTEN = """\
import socket, sys
print("ready", flush=True)
ends = []
for line in sys.stdin:
    ends.append(socket.socket(socket.AF_UNIX))
    ends[-1].bind(line.strip())
    ends[-1].listen()
    print("listens", flush=True)
"""


class Process:
    """A process that listens on the socket of its argument."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.hear("ready")

    def hear(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def listen(self, path: Path) -> None:
        assert self.process.stdin is not None
        print(path, file=self.process.stdin, flush=True)
        self.hear("listens")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def server(self) -> Server:
        info = processes.read(self.process.pid)
        assert info is not None
        return Server(info, (info.pid, 1))


@contextmanager
def process(*words: str) -> Iterator[Process]:
    words = (sys.executable, "-c", LISTEN, *words)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as started:
        try:
            yield Process(started)
        finally:
            started.kill()


class Polling:
    """A target, minutes between two polls, and what it finds of the server's next process."""

    def __init__(self, server: Server) -> None:
        self.found: Server | StallscopeError = NotRunningError("no process named x")
        self.target = Target(server, self._find)
        self._clock = 0

    def _find(self, server: Server) -> Server:
        if isinstance(self.found, StallscopeError):
            raise self.found
        return self.found

    def poll(self) -> str | None:
        self._clock += 60 * NS
        return self.target.poll(self._clock)

    def restarts(self) -> bool:
        """Return whether one of the next polls finds it: others of its name, that come and go
        meanwhile, put it off by one."""
        return any(self.poll() == "restarted" for _ in range(100))

    def sockets(self) -> list[Path]:
        return [Path(name) for name in self.target.server.sockets]


def test_its_next_process_is_taken_up() -> None:
    with Messages() as log, process() as before, process() as after:
        polling = Polling(before.server())
        assert polling.poll() is None
        before.end()
        assert polling.poll() == "ended"
        assert polling.poll() is None
        polling.found = StallscopeError("2 servers answer to x")
        assert (polling.poll(), polling.poll()) == (None, None)
        polling.found = after.server()
        assert polling.restarts()
        assert polling.poll() is None
    pid, name = before.process.pid, polling.target.server.name
    how = f": {polling.target.ending}" if polling.target.ending else ""  # kernels before 6.15
    assert log.messages == [
        f"{name} (pid {pid}) has ended{how}; waiting for it",
        "2 servers answer to x",
        f"watching {name} (pid {after.process.pid})",
    ]


def test_one_that_is_added_while_it_starts_is_polled_until_it_listens(tmp_path: Path) -> None:
    with process() as young:
        polling = Polling(young.server())
        assert [polling.poll() for _ in range(3)] == [None] * 3
        young.listen(tmp_path / "a")
        assert polling.poll() == "reachable"
        assert polling.sockets() == [tmp_path / "a"]
        assert polling.target.server.pids == (young.process.pid, 1)
        young.listen(tmp_path / "b")
        assert polling.poll() == "reachable"
        assert polling.sockets() == [tmp_path / "a", tmp_path / "b"]
        assert polling.poll() is None
        young.listen(tmp_path / "c")
        assert polling.poll() is None, "it was grown up"


def test_one_whose_socket_is_known_grows_up_as_it_listens(tmp_path: Path) -> None:
    with process(f"--socket={tmp_path / 'a'}") as young:
        server = processes.seen_again(young.server())
        assert server is not None
        assert server.sockets == (str(tmp_path / "a"),)
        polling = Polling(server)
        assert polling.poll() is None
        young.listen(tmp_path / "a")
        assert [polling.poll() for _ in range(3)] == ["reachable", None, None]
        now = polling.target.server
        assert (now.pids, now.sockets, now.ports) == (server.pids, server.sockets, server.ports)


def test_one_that_listens_already_has_grown_up(tmp_path: Path) -> None:
    with process() as old:
        old.listen(tmp_path / "a")
        server = processes.seen_again(old.server())
        assert server is not None
        assert [Polling(server).poll() for _ in range(2)] == [None, None]

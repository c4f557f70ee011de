# SPDX-License-Identifier: Apache-2.0
"""A server that has ended is found again, and no other one is taken for it."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes, waits
from stallscope.collectors.probestream import Stream
from stallscope.collectors.processes import Choose, NotRunningError, Selector, Server
from tests.support.servers import PATIENCE
from tests.unit.programs import python_program

Find = Callable[[Server], Server]


def server(pid: int, start_time: int = 1, datadir: str | None = "/data/a") -> Server:
    info = processes.read(os.getpid())
    assert info is not None
    main = msgspec.structs.replace(info, pid=pid, start_time=start_time, exe="/usr/sbin/mysqld")
    return Server(main=main, pids=(pid, pid + 1), datadir=datadir, uid=os.geteuid())


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    """Return a probe that prints what it is sent."""
    program = python_program(
        tmp_path / "probe",
        "import sys\nfor line in sys.stdin:\n    print(line.strip(), flush=True)\n",
    )
    monkeypatch.setenv("STALLSCOPE_PROBE", str(program))
    with Stream(["waits"], max_line=1000) as running:
        yield running


@pytest.fixture
def gone() -> int:
    """Return a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_the_new_process_is_reported(stream: Stream, gone: int) -> None:
    said: list[str] = []
    found = server(os.getpid(), start_time=2)
    with waits.Follower(server(gone), lambda old: found, said.append) as follower:
        follower.begin(stream)
        assert follower.tick(stream) == math.inf
        assert follower.server is found
        lines = stream.lines(PATIENCE, lambda: math.inf)
        assert [next(lines), next(lines)] == [b"target %d" % pid for pid in found.pids]
        assert said == [
            f"mysqld (pid {gone}) has ended; waiting for it",
            f"watching mysqld (pid {os.getpid()})",
        ]
        assert follower.tick(stream) == math.inf  # it lives


def test_why_it_is_not_found_is_said_once(stream: Stream, gone: int) -> None:
    said: list[str] = []
    answers: list[Exception] = [
        NotRunningError("no process named mysqld"),
        StallscopeError("2 servers answer"),
        StallscopeError("2 servers answer"),
        NotRunningError("no process named mysqld"),
    ]

    def find(old: Server) -> Server:
        raise answers.pop(0)

    with waits.Follower(server(gone), find, said.append) as follower:
        follower.begin(stream)
        pauses = []
        while answers:
            pauses.append(follower.tick(stream))
    assert said[1:] == ["2 servers answer"]
    assert max(pauses) <= 1.0


def test_a_process_that_has_ended_and_is_still_shown_is_not_back(stream: Stream, gone: int) -> None:
    old = server(gone)
    with waits.Follower(old, lambda _: old, lambda text: None) as follower:
        follower.begin(stream)
        assert 0 < follower.tick(stream) <= 1.0
        assert follower.server is old


def test_a_watch_that_ends_waits_for_nobody(stream: Stream, gone: int) -> None:
    with waits.Follower(server(gone), lambda old: old, lambda text: None) as follower:
        follower.begin(stream)
        stream.end()
        assert follower.tick(stream) == math.inf


def test_what_follows_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several the one with its data; and no other, even where it is the only one."""
    found = [server(11), server(12, datadir="/data/b")]

    def find_server(name: str, selector: Selector, choose: Choose) -> Server:
        assert (name, selector) == ("mysqld", asked)
        (one,) = choose(found)
        return one

    monkeypatch.setattr(processes, "find_server", find_server)
    asked = Selector(socket="/s")
    find: Find = waits.find_again("mysqld", asked)
    assert find(server(10, datadir="/data/b")).main.pid == 12
    with pytest.raises(NotRunningError, match="if it was moved, say --datadir /data/a"):
        find(server(10, datadir="/data/c"))
    with pytest.raises(ValueError, match="too many values"):
        find(server(10, datadir=None))

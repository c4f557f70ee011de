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
from stallscope.collectors.processes import NotRunningError, Selector, Server
from tests.support.servers import PATIENCE
from tests.unit.programs import python_program

Find = Callable[[Server], Server]


def server(pid: int, start_time: int = 1, datadir: str | None = "/data/a") -> Server:
    info = processes.read(os.getpid())
    assert info is not None
    main = msgspec.structs.replace(info, pid=pid, start_time=start_time, exe="/usr/sbin/mysqld")
    return Server(main=main, pids=(pid, pid + 1), datadir=datadir)


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


def two_of_a_name(monkeypatch: pytest.MonkeyPatch) -> dict[str, Server]:
    by_folder = {"/data/a": server(11), "/data/b": server(12, datadir="/data/b")}

    def find_server(name: str, selector: Selector) -> Server:
        assert name == "mysqld"
        if selector.datadir is None:
            raise StallscopeError("2 servers answer to mysqld")
        if selector.datadir not in by_folder:
            raise NotRunningError(f"no mysqld with datadir {selector.datadir}")
        return by_folder[selector.datadir]

    monkeypatch.setattr(processes, "find_server", find_server)
    return by_folder


def test_of_two_the_one_with_its_data_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    by_folder = two_of_a_name(monkeypatch)
    find: Find = waits.find_again("mysqld", Selector())
    assert find(server(10, datadir="/data/b")) is by_folder["/data/b"]
    with pytest.raises(NotRunningError):
        find(server(10, datadir="/data/c"))
    with pytest.raises(StallscopeError, match="2 servers"):
        find(server(10, datadir=None))


def test_what_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    by_folder = two_of_a_name(monkeypatch)
    find: Find = waits.find_again("mysqld", Selector(datadir="/data/a"))
    assert find(server(10, datadir="/data/b")) is by_folder["/data/a"]

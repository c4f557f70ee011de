# SPDX-License-Identifier: Apache-2.0
"""Waiting for a server: when it is searched for, and what is logged meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.agent import target as targets
from stallscope.agent import waiting
from stallscope.agent.candidates import Candidates
from stallscope.agent.target import Target
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.base.threads import Pulse
from stallscope.collectors import processes
from stallscope.collectors.processes import NotRunningError, Selector, Server
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentfakes import server_of, this_server
from tests.unit.agentlog import Messages


class Program:
    """A program with a name of its own."""

    def __init__(self, folder: Path) -> None:
        self.name = f"w{os.getpid() % 100_000}"
        self.path = folder / self.name
        shutil.copy(shutil.which("sleep") or "/bin/sleep", self.path)
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([str(word) for word in words or (self.path, 1000)])
        self.running.append(process)
        return process

    def find(self) -> Server:
        return processes.find_server(self.name, Selector())


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


def test_a_process_of_the_name_is_a_candidate(program: Program) -> None:
    candidates = Candidates(program.name)
    candidates.changed(time.monotonic())
    process = program.start()
    wait_until(lambda: candidates.changed(time.monotonic()), "it is seen")
    assert process.pid in candidates._found
    process.kill()
    process.wait()
    wait_until(lambda: process.pid not in _after(candidates), "its end is seen")


def _after(candidates: Candidates) -> set[int]:
    candidates.changed(time.monotonic())
    return candidates._found


def test_a_process_that_becomes_the_program_later_is_a_candidate(program: Program) -> None:
    candidates = Candidates(program.name)
    process = program.start("sh", "-c", f"read x; exec {program.path} 1000")
    # Without a terminal `read` ends at once; that it was seen before does not matter.
    wait_until(lambda: process.pid in _after(candidates), "it is seen")


def test_other_processes_are_none(program: Program) -> None:
    candidates = Candidates("no-such-program")
    process = program.start()
    candidates.changed(time.monotonic())
    assert process.pid not in candidates._found
    assert Candidates(None)._fits(os.getpid()) is False


def test_a_search_comes_with_a_candidate(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "STARTING_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "SEARCH_SECONDS", 2 * PATIENCE)
    searched = threading.Event()
    found: list[Server | None] = []

    def find() -> Server:
        try:
            return program.find()
        finally:
            searched.set()

    def wait() -> None:
        found.append(waiting.wait_for(find, Candidates(program.name), threading.Event(), Pulse()))

    with Messages() as log:
        thread = threading.Thread(target=wait)
        thread.start()
        assert searched.wait(PATIENCE)
        process = program.start()
        thread.join(PATIENCE)
    assert found[0] is not None
    assert found[0].main.pid == process.pid
    assert [message.partition(":")[0] for message in log.messages] == [
        f"waiting for {program.name}",
        f"found {program.name} (pid {process.pid})",
    ]


def test_a_restarted_server_is_found_after_a_long_time(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "STARTING_SECONDS", 0.0)
    monkeypatch.setattr(targets, "SEARCH_SECONDS", 1e9)
    process = program.start()
    wait_until(lambda: program.name in (server_of(process.pid).main.names), "it has begun")
    target = Target(server_of(process.pid), lambda old: program.find())
    process.kill()
    process.wait()
    now = time.monotonic_ns
    wait_until(lambda: target.poll(now()) == "ended", "its end is seen")
    for _ in range(3):  # the last of these searches is the last for a long time
        assert target.poll(now() + 1_000_000_000) is None
    again = program.start()
    # So long a wait that nobody would be searched for without the candidate.
    wait_until(lambda: target.poll(now()) == "restarted", "it is followed")
    assert target.server.main.pid == again.pid
    target.close()


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (UsageError("-p takes a process id"), StallscopeError),
        (StallscopeError("2 servers: somebody can choose"), NotRunningError),
    ],
)
def test_what_waiting_does_not_cure_is_raised(
    error: StallscopeError, passing: type[StallscopeError]
) -> None:
    def find() -> Server:
        raise error

    with pytest.raises(type(error), match=str(error)):
        waiting.wait_for(find, Candidates(None), threading.Event(), Pulse(), passing=passing)


def test_each_reason_is_logged_once_and_then_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "STARTING_SHARE", 0.0)
    stop = threading.Event()
    errors: Iterator[StallscopeError] = iter(
        [
            NotRunningError("none"),
            NotRunningError("none"),
            NotRunningError("none, other words"),
            StallscopeError("two"),
            NotRunningError("none"),
        ]
    )

    def find() -> Server:
        try:
            raise next(errors)
        except StopIteration:
            return this_server()

    with Messages() as log:
        waiting.wait_for(find, Candidates(None), stop, Pulse())
    assert [message.rpartition(": ")[2] for message in log.messages[:-1]] == ["none", "two", "none"]
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.0)
    notice = waiting._Notice("mysqld")
    with Messages() as log:
        notice.waits(NotRunningError("none"))
        notice.waits(NotRunningError("none"))
    assert log.messages[1] == "waiting for mysqld since 0 minutes: none"

# SPDX-License-Identifier: Apache-2.0
"""The probe session, with a program in the probe's place that does what the test says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from stallscope.agent import probe_session
from stallscope.agent.events import (
    CaptureResult,
    Event,
    EventQueue,
    ProbeStatus,
    TargetEnded,
    WaitsReceived,
)
from stallscope.agent.probe_session import ProbeSession, ProbeSettings, arguments
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentlog import Messages

FAKE = """\
#!{python}
import json, os, signal, sys
def say(**line):
    print(json.dumps(line, separators=(",", ":")), flush=True)
{behaviour}
"""
SAMPLED = """\
say(type="ready")
for _ in range(2):
    say(type="waits", schema="stallscope.waits/1", ts=1.0, seconds=1.0, kinds={}, keys=[], lost={},
        source="poll", sampled=True, interval_ns=10000000, longest_interval_ns=10000000,
        programs=[{"name": "polling", "attach": "/proc", "ok": True},
            {"name": "wait programs", "attach": "BPF", "ok": False, "why_not": "no BTF: sampled"}])
sys.stdin.read()
"""
OBEY = """\
say(type="ready")
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "snap":
        open(rest, "w").close()
        say(type="written", path=rest, partial=False)
    elif word == "target":
        say(type="target", pid=int(rest))
"""
DIE_CAPTURING = """\
say(type="ready")
sys.stdin.readline()
print("stallscope-probe: out of luck", file=sys.stderr)
sys.exit(1)
"""
NO_WATCH = (
    """\
if "--watch" in sys.argv:
    print("stallscope-probe: no BPF here", file=sys.stderr)
    sys.exit(1)
"""
    + OBEY
)
REPORT = """\
say(type="ready")
say(type="captured", path="/x", partial=True, trigger={"reason": "convoy", "kind": "mutex",
    "address": "0x10", "waiters": 12, "finished_ms": 17.5})
say(type="not-captured", message="too late", trigger={"reason": "threshold", "kind": "fsync"})
say(type="waits", schema="stallscope.waits/1", ts=1.0, seconds=1.0, kinds={}, keys=[], lost={})
say(type="ended", message="process 1 has ended")
sys.stdin.read()
"""
LOG = """\
def log(*words):
    with open({log!r}, "a") as file:
        print(*words, file=file)
log(*sys.argv[1:])
"""
SLOW = (
    LOG
    + """\
import time
while not os.path.exists({gate!r}):
    time.sleep(0.01)
say(type="ready")
for line in sys.stdin:
    log(line.strip())
    say(type="target", pid=int(line.split()[1]))
"""
)
REFUSE = (
    LOG
    + """\
say(type="ready")
for line in sys.stdin:
    if line.startswith("target"):
        say(type="error", message="its maps cannot be read")
"""
)
BUSY = (
    """\
if "--watch" in sys.argv and not os.path.exists({gate!r}):
    print("stallscope-probe: too busy to load", file=sys.stderr)
    sys.exit(1)
"""
    + OBEY
)
GONE = (
    """\
if "{pid}" in sys.argv:
    print("stallscope-probe: process {pid} has ended", file=sys.stderr)
    sys.exit(1)
"""
    + OBEY
)
GARBAGE = """\
print("not JSON", flush=True)
sys.stdin.read()
"""
DEAF = """\
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(type="ready")
while True:
    signal.pause()
"""


class Session:
    """A session and what came of it."""

    def __init__(self, settings: ProbeSettings, said: list[str]) -> None:
        self.events = EventQueue()
        self.said = said
        self.seen: list[Event] = []
        self.session = ProbeSession(settings, self.events.put)

    def wait(self, wanted: Callable[[Event], bool]) -> Event:
        """Return the first event that is wanted, of those that came or come."""
        deadline = time.monotonic() + PATIENCE
        seen = 0
        while True:
            for event in self.seen[seen:]:
                if wanted(event):
                    return event
            seen = len(self.seen)
            got = self.events.get(deadline - time.monotonic())
            assert got is not None, f"it did not come; {self.said}; {self.seen}"
            self.seen.append(got)

    def ready(self, *, sees_waits: bool = True) -> None:
        self.wait(lambda event: event == ProbeStatus(ready=True, sees_waits=sees_waits))
        self.seen.clear()


class Begin(Protocol):
    def __call__(self, behaviour: str | None, pid: int = 1) -> Session: ...


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Return what starts a session on a probe that behaves so; None: there is no probe."""
    monkeypatch.setattr(probe_session, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(probe_session, "LONGEST_PAUSE", 0.05)
    made: list[Session] = []

    def make(behaviour: str | None, pid: int = 1) -> Session:
        program = tmp_path / "probe"
        if behaviour is not None:
            program.write_text(FAKE.format(python=sys.executable, behaviour=behaviour))
            program.chmod(0o755)
        monkeypatch.setenv("STALLSCOPE_PROBE", str(program))
        session = Session(ProbeSettings(captures=tmp_path), log.messages)
        session.session.start((pid,))
        made.append(session)
        return session

    with Messages() as log:
        yield make
        for session in made:
            session.session.close()


def test_a_probe_that_dies_is_started_again_and_the_capture_fails(
    begin: Begin, tmp_path: Path
) -> None:
    session = begin(DIE_CAPTURING)
    session.ready()
    session.session.capture("a", tmp_path / "a")
    shot = session.wait(lambda event: isinstance(event, CaptureResult))
    assert isinstance(shot, CaptureResult)
    assert shot.key == "a"
    assert shot.error is not None
    assert "out of luck" in shot.error
    session.wait(lambda event: isinstance(event, ProbeStatus) and event.ready)
    assert session.session.restarts == 1
    assert len(session.said) == 1


def test_without_bpf_it_goes_on_with_less_and_says_so_once(begin: Begin, tmp_path: Path) -> None:
    session = begin(NO_WATCH)
    session.ready(sees_waits=False)
    assert len(session.said) == 1
    assert "no waits: no BPF here" in session.said[0]
    session.session.capture("a", tmp_path / "a")
    shot = session.wait(lambda event: isinstance(event, CaptureResult))
    assert isinstance(shot, CaptureResult)
    assert shot.error is None


def test_waits_that_are_sampled_are_waits_and_why_is_said_once(begin: Begin) -> None:
    session = begin(SAMPLED)
    session.ready(sees_waits=True)
    for _ in range(2):
        session.wait(lambda event: isinstance(event, WaitsReceived))
    assert session.said == ["wait programs: no BTF: sampled"]


def test_wait_programs_that_could_not_be_loaded_are_tried_again(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_session, "WATCH_AGAIN_SECONDS", 0.05)
    gate = tmp_path / "gate"
    session = begin(BUSY.format(gate=str(gate)))
    session.ready(sees_waits=False)
    session.ready(sees_waits=False)  # again without success
    assert len(session.said) == 1
    gate.touch()
    session.ready(sees_waits=True)
    assert session.session.restarts == 0


def test_without_a_probe_every_capture_says_so(begin: Begin, tmp_path: Path) -> None:
    session = begin(None)
    wait_until(lambda: len(session.said) >= 2, "it says so")
    session.session.capture("a", tmp_path / "a")
    shot = session.wait(lambda event: isinstance(event, CaptureResult))
    assert isinstance(shot, CaptureResult)
    assert shot.error is not None
    assert "no program there" in shot.error


def test_what_it_says_by_itself_is_news(begin: Begin) -> None:
    session = begin(REPORT)
    taken = session.wait(lambda event: isinstance(event, CaptureResult) and event.path == "/x")
    assert isinstance(taken, CaptureResult)
    assert taken.key is None
    assert taken.partial
    assert taken.wait is not None
    assert (taken.wait.address, taken.wait.waiters, taken.wait.finished_ms) == (16, 12, 17.5)
    failed = session.wait(lambda event: isinstance(event, CaptureResult) and event.path is None)
    assert isinstance(failed, CaptureResult)
    assert failed.error == "too late"
    assert isinstance(session.wait(lambda event: isinstance(event, WaitsReceived)), WaitsReceived)
    session.wait(lambda event: isinstance(event, TargetEnded))


def test_an_invalid_line_ends_that_probe_and_not_the_session(begin: Begin) -> None:
    session = begin(GARBAGE)
    wait_until(lambda: session.session.restarts >= 2, "it tries again")
    assert "line 1" in session.said[0]
    # Once with wait programs and once without, not at each attempt.
    assert len(session.said) == len(set(session.said)) <= 2


def test_other_triggers_restart_it(begin: Begin, tmp_path: Path) -> None:
    session = begin(OBEY)
    session.ready()
    before = session.session.pid
    session.session.change(ProbeSettings(captures=tmp_path, triggers=("--convoy=5",)))
    session.ready()
    assert session.session.pid not in (None, before)


def test_a_restarted_server_has_another_ring(begin: Begin, tmp_path: Path) -> None:
    log = tmp_path / "starts"
    session = begin(f"print(*sys.argv[1:], file=open({str(log)!r}, 'a'))\n{OBEY}")
    session.ready()
    ring = tmp_path / "1-1.ring"
    session.session.change(ProbeSettings(captures=tmp_path, backend="inproc", ring=ring))
    session.ready()
    session.session.follow((2,))
    session.ready()
    _, named, found = log.read_text().splitlines()
    assert f"--backend inproc --pid 1 --ring {ring}" in named
    assert "--backend inproc" in found
    assert "--pid 2" in found
    assert "--ring" not in found


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_a_server_that_is_back_before_the_probe_is_ready_is_followed(
    begin: Begin, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    session = begin(SLOW.format(log=str(log), gate=str(gate)))
    wait_until(lambda: lines(log), "it begins")
    session.session.follow((2, 3))
    gate.touch()
    session.ready()
    wait_until(lambda: lines(log)[1:] == ["target 2", "target 3"], "it gets both commands")
    session.session.follow((4,))
    wait_until(lambda: lines(log)[3:] == ["target 4"], "it gets the command once")
    assert session.session.restarts == 0


def test_a_probe_that_cannot_add_the_server_is_restarted(begin: Begin, tmp_path: Path) -> None:
    log = tmp_path / "log"
    session = begin(REFUSE.format(log=str(log)))
    session.ready()
    session.session.follow((os.getpid(),))
    session.session.capture("a", tmp_path / "a")
    shot = session.wait(lambda event: isinstance(event, CaptureResult))
    assert isinstance(shot, CaptureResult)
    assert shot.key == "a"
    assert "the probe ended during the capture" in (shot.error or "")
    session.ready()
    assert f"--pid {os.getpid()}" in lines(log)[1]
    assert f"cannot follow to process {os.getpid()}: its maps cannot be read" in session.said[0]


def test_a_process_that_is_gone_when_it_is_to_be_taken_up_changes_nothing(
    begin: Begin, tmp_path: Path
) -> None:
    session = begin(REFUSE.format(log=str(tmp_path / "log")))
    session.ready()
    session.session.follow((dead(),))
    session.session.follow((1,))
    wait_until(lambda: session.said, "the process that is there is missed")
    session.ready()
    assert session.said[0].startswith("the probe cannot follow to process 1:")


def dead() -> int:
    """Return the number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_a_server_that_ends_while_the_probe_begins_costs_no_wait_programs(begin: Begin) -> None:
    gone = dead()
    session = begin(GONE.format(pid=gone), gone)
    wait_until(lambda: session.session.restarts, "there is nothing to capture")
    session.session.follow((1,))
    session.ready(sees_waits=True)
    assert session.said == []


@pytest.mark.large
def test_one_that_ignores_signals_does_not_delay_the_end(begin: Begin) -> None:
    session = begin(DEAF)
    session.ready()
    pid = session.session.pid
    session.session.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it does not stay behind")


def test_the_command_line_has_captures_only_where_a_trigger_needs_them(tmp_path: Path) -> None:
    settings = ProbeSettings(captures=tmp_path)
    assert "--captures" not in arguments((1,), settings, watch=True)
    wanted = ProbeSettings(captures=tmp_path, triggers=("--convoy=5",))
    words = arguments((1, 2), wanted, watch=True)
    assert words.count("--pid") == 2
    assert str(tmp_path) in words
    assert "--watch" not in arguments((1,), wanted, watch=False)


WITH_MEMORY = (
    LOG
    + """\
say(type="ready")
def show(number, statement):
    say(type="sessions", time_ns=1, moment=number, sessions=[
        {{"process": 0, "tid": 5, "connection": 7, "statement": statement}}])
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    log(word, rest)
    if word == "layout" and rest == "refused=1":
        say(type="error", message="no such layout")
    elif word == "layout":
        say(type="layout", entries=len(rest.split()))
    elif rest.endswith("fails"):
        show(0, "SELECT 'lost'")
        say(type="error", message="the disk is full")
    elif word in ("snap", "burst"):
        open(rest, "w").close()
        show(0, "SELECT 1")
        show(1, "SELECT 2")
        say(type="written", path=rest, partial=False)
        show(0, "SELECT 3")
        say(type="captured", path="/x", partial=False,
            trigger={{"reason": "convoy", "kind": "mutex"}})
"""
)


def statements(shot: CaptureResult) -> list[tuple[int, str | None]]:
    return [(one.number, session.statement) for one in shot.memory for session in one.sessions]


def test_memory_goes_with_the_capture_that_it_is_of(begin: Begin, tmp_path: Path) -> None:
    session = begin(WITH_MEMORY.format(log=str(tmp_path / "log")))
    session.ready()
    session.session.capture("fails", tmp_path / "fails")
    session.session.capture("a", tmp_path / "a")
    failed = session.wait(lambda event: isinstance(event, CaptureResult) and event.key == "fails")
    taken = session.wait(lambda event: isinstance(event, CaptureResult) and event.key == "a")
    of_a_wait = session.wait(lambda event: isinstance(event, CaptureResult) and event.path == "/x")
    assert isinstance(failed, CaptureResult)
    assert isinstance(taken, CaptureResult)
    assert isinstance(of_a_wait, CaptureResult)
    assert (failed.error, failed.memory) == ("the disk is full", ())
    assert (taken.path, taken.error) == (str(tmp_path / "a"), None)
    assert statements(taken) == [(0, "SELECT 1"), (1, "SELECT 2")]
    assert statements(of_a_wait) == [(0, "SELECT 3")]


def test_a_layout_is_said_to_each_probe(begin: Begin, tmp_path: Path) -> None:
    log = tmp_path / "log"
    session = begin(WITH_MEMORY.format(log=str(log)))
    session.ready()
    session.session.use_layout("thd.id=8 thd.tls=-1")
    said = ["layout -", "layout thd.id=8 thd.tls=-1"]
    wait_until(lambda: lines(log)[1:] == said, "it is said")
    session.session.change(ProbeSettings(captures=tmp_path, triggers=("--convoy=5",)))
    session.ready()
    wait_until(lambda: lines(log)[4:] == said, "the next one hears it, too")
    session.session.use_layout("")
    wait_until(lambda: lines(log)[6:] == ["layout -"], "it is forgotten")
    # A probe takes no line of any length.
    entries = [f"thd.{'k' * 80}{i}={i}" for i in range(512)]
    session.session.use_layout(" ".join(entries))
    wait_until(lambda: " ".join(lines(log)).count("=") >= 512, "all is said")
    assert max(map(len, lines(log))) < 4000
    heard = [word for line in lines(log)[7:] for word in line.split() if "=" in word]
    assert heard == entries


def test_a_layout_that_is_refused_is_no_capture_that_failed(begin: Begin, tmp_path: Path) -> None:
    session = begin(WITH_MEMORY.format(log=str(tmp_path / "log")))
    session.ready()
    session.session.use_layout("refused=1")
    session.session.capture("a", tmp_path / "a")
    taken = session.wait(lambda event: isinstance(event, CaptureResult) and event.key is not None)
    assert isinstance(taken, CaptureResult)
    assert (taken.key, taken.error) == ("a", None)
    assert session.said == ["the probe: no such layout"]
    assert session.session.restarts == 0

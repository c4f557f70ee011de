# SPDX-License-Identifier: Apache-2.0
"""Threads that the probe ignores on request: no wait of theirs is seen, and all others are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from stallscope.model.waitlines import Event
from tests.root.support import assert_unharmed
from tests.support.known_waits import known_waits, make
from tests.support.servers.inside import one_ring, preloaded
from tests.support.targets import Target
from tests.support.watching import Waits, key_of, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

HELD_MS = 1000
"""Longer than a probe at rest takes from one look to the next, also on a busy machine."""
WAITERS = 4
TRIES = 10
LINES = 5
"""Of the watch, until a wait that has ended is seen or was missed."""
LONG = ("--events", "--threshold", "100", "--interval", "200")
LOADED = ("programs", "no-timer", "poll")
"""Those that other kernels try as well."""
SOURCES = {
    "programs": (),
    "no-timer": ("--no-timer",),
    "at-rest": ("--at-rest",),
    "at-rest-unattached": ("--at-rest", "--no-attach"),
    "poll": ("--backend", "poll"),
}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with known_waits(tmp_path, waiters=WAITERS, idle=3, calm=True) as target:
        yield target
        assert target.running()
        assert_unharmed(target.pid)


def ignore(watch: Waits, target: Target, tids: Sequence[int]) -> None:
    for tid in tids:
        answer = watch.ask(f"ignore {target.pid} {tid}".encode())
        assert (answer.type, answer.pid, answer.tid) == ("ignored", target.pid, tid)


def waiting_tids(target: Target) -> list[int]:
    """Return the threads that the target has wait for a mutex."""
    return sorted(call.tid for call in make(target, f"mutex 1 30 {WAITERS}").calls)


def tids_of(events: Sequence[Event], since_ns: int = 0) -> set[int | None]:
    return {event.tid for event in events if (event.start_ns or 0) >= since_ns}


def wait_until_seen(watch: Waits, target: Target, tids: Sequence[int]) -> int:
    """Make long waits until events have these threads; return when the first began.

    One wait is enough, but for a source that looks so rarely on a busy emulated machine.
    """
    since = None
    for _ in range(TRIES):
        made = make(target, f"mutex 1 {HELD_MS} {WAITERS}")
        since = since or min(call.start_ns for call in made.calls) - HELD_MS * 1_000_000
        for _ in range(LINES):
            watch.line()
            if tids_of(watch.events) >= set(tids):
                return since
    pytest.fail(f"{TRIES} times {WAITERS} threads waited for {HELD_MS} ms, and were not seen")


@pytest.mark.parametrize(
    "source",
    [
        # An emulated machine is too slow for the passes of a probe at rest: its short waits end
        # between two of them.
        pytest.param(source, marks=[pytest.mark.kernels("waits")] if source in LOADED else [])
        for source in SOURCES
    ],
)
def test_an_ignored_thread_is_in_no_line_until_it_is_heeded(target: Target, source: str) -> None:
    tids = waiting_tids(target)
    with Waits(*LONG, *SOURCES[source], pids=(target.pid,)) as watch:
        ignore(watch, target, tids[:2])
        since = wait_until_seen(watch, target, tids[2:])
        assert tids_of(watch.events, since) == set(tids[2:])
        for tid in tids[:2]:
            answer = watch.ask(f"heed {target.pid} {tid}".encode())
            assert (answer.type, answer.pid, answer.tid) == ("heeded", target.pid, tid)
        wait_until_seen(watch, target, tids)
        assert tids_of(watch.events) == set(tids)
        watch.finish()


def test_nothing_of_an_ignored_thread_is_counted(target: Target) -> None:
    tids = waiting_tids(target)
    with Waits("--interval", "3600000", pids=(target.pid,)) as watch:
        ignore(watch, target, tids[1:])
        make(target, f"mutex 3 20 {WAITERS}")
        total = watch.finish()
    assert key_of(total, "mutex", "the_mutex").count == 3


def test_a_wait_in_flight_is_ignored_too(target: Target) -> None:
    tids = waiting_tids(target)
    with Waits("--threshold", "20", "--interval", "50", pids=(target.pid,)) as watch:
        made = make(target, f"hold mutex {WAITERS}")
        in_flight = watch.key(lambda key: key.in_flight == WAITERS)
        assert in_flight.name == "the_mutex"
        ignore(watch, target, tids[1:])
        watch.key(lambda key: key.name == "the_mutex" and key.in_flight == 1)
        make(target, "release")
        total = watch.finish()
    assert len(made.calls) == WAITERS
    assert key_of(total, "mutex", "the_mutex").count == 1


@pytest.mark.parametrize("source", ["programs", "at-rest", "poll"])
def test_the_history_does_not_have_an_ignored_thread(target: Target, source: str) -> None:
    options = ("--history", "--interval", "200", *SOURCES[source])
    with Waits(*options, pids=(target.pid,)) as watch:
        threads = len(os.listdir(f"/proc/{target.pid}/task"))
        before = watch.line(lambda line: bool(line.history)).history[-1]
        assert before.threads == threads
        ignore(watch, target, waiting_tids(target))
        watch.line(
            lambda line: bool(line.history) and line.history[-1].threads == threads - WAITERS
        )
        watch.finish()


@pytest.mark.needs("library")
def test_the_ring_of_the_library_has_none_of_an_ignored_thread(tmp_path: Path, rings: Path) -> None:
    with known_waits(
        tmp_path, waiters=WAITERS, idle=3, env=preloaded(rings), staged=True
    ) as target:
        one_ring(rings)
        tids = waiting_tids(target)
        options = (*LONG, "--backend", "inproc", "--ring", str(one_ring(rings)))
        with Waits(*options, pids=(target.pid,)) as watch:
            ignore(watch, target, tids[:2])
            make(target, f"mutex 1 {HELD_MS} {WAITERS}")
            expected = set(tids[2:])
            watch.line(lambda _: tids_of(watch.events) >= expected)
            assert tids_of(watch.events).isdisjoint(tids[:2])
            watch.finish()


class Threads:
    """A process that starts a thread when asked; each waits for a lock when asked."""

    SCRIPT = """
import sys, threading
lock, go, threads = threading.Lock(), [], []
def work(mine):
    print(threading.get_native_id(), flush=True)
    while True:
        mine.acquire()
        if done: return
        if not lock.acquire(timeout=0.3): print("late", flush=True)
done = False
lock.acquire()
for word in sys.stdin:
    if word == "start\\n":
        mine = threading.Lock(); mine.acquire()
        thread = threading.Thread(target=work, args=(mine,)); thread.start()
        threads.append((thread, mine))
    elif word == "wait\\n":
        threads[-1][1].release()
    else:
        done = True; threads[-1][1].release(); threads[-1][0].join(); done = False
        threads.pop(); print("ended", flush=True)
"""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def start_as(self, tid: int) -> bool:
        """Start a thread; return whether it has got this number."""
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(tid - 1))
        return int(self.ask("start")) == tid


@pytest.mark.parametrize("source", ["programs", "at-rest-unattached", "poll"])
def test_a_thread_with_the_number_of_an_ignored_one_is_not_ignored(source: str) -> None:
    with Threads() as target:
        options = (*LONG, *SOURCES[source])
        with Waits(*options, pids=(target.pid,)) as watch:
            for _ in range(20):  # another process may take the number
                tid = int(target.ask("start"))
                answer = watch.ask(f"ignore {target.pid} {tid}".encode())
                assert answer.type == "ignored"
                assert target.ask("wait") == "late"
                assert target.ask("end") == "ended"
                watch.line()
                watch.line()
                watch.line()
                if target.start_as(tid):
                    break
                assert target.ask("end") == "ended"
            else:
                pytest.fail("its number was always taken")
            assert tid not in tids_of(watch.events)
            assert target.ask("wait") == "late"
            watch.line(lambda _: tid in tids_of(watch.events))
            watch.finish()


def test_as_many_as_there_is_room_for() -> None:
    with Threads() as target, Waits("--interval", "3600000", pids=(target.pid,)) as watch:
        tids = [int(target.ask("start")) for _ in range(65)]
        for tid in tids[:64]:
            assert watch.ask(f"ignore {target.pid} {tid}".encode()).type == "ignored"
        answer = watch.ask(f"ignore {target.pid} {tids[64]}".encode())
        assert (answer.type, answer.message) == ("not-ignored", "64 threads are ignored already")
        # Those that have ended make room.
        watch.ask(f"heed {target.pid} {tids[0]}".encode())
        assert watch.ask(f"ignore {target.pid} {tids[64]}".encode()).type == "ignored"
        assert target.ask("end") == "ended"
        assert watch.ask(f"ignore {target.pid} {tids[0]}".encode()).type == "ignored"
        watch.finish()


WRONG = (
    "",
    "1",
    "x y",
    "{pid}",
    "{pid} ",
    "{pid} 0",
    "{pid} -1",
    "{pid} 4194305 x",
    "{pid} 99999999999999999999",
    "{pid} socket:",
    "{pid} socket:0",
    "{pid} socket:x",
    "{pid} socket:[1]",
    "{pid} socket:4294967296",
    "{pid} \x1b[31m",
    "{pid} " + "9" * 200,
)
UNKNOWN = ("{pid} 1", "1 1")
"""No thread, and no process, that is watched: to heed it changes nothing."""
NOBODY = ("{pid} socket:1", "1 socket:1")


def test_what_cannot_be_ignored_is_refused_in_a_line(target: Target) -> None:
    with (
        Waits("--interval", "3600000", pids=(target.pid,)) as watch,
        watcher(target.pid, options=("--watch",)) as serve,
    ):
        for command in ("ignore", "heed"):
            for operand in (*WRONG, *UNKNOWN, *NOBODY):
                line = f"{command} {operand}".format(pid=target.pid)
                expected = "error"
                if operand not in WRONG and command == "ignore":
                    expected = "not-ignored"
                elif operand in UNKNOWN:
                    expected = "heeded"
                answer = watch.ask(line.encode())
                assert answer.type == expected, line
                served = serve.ask(line, "error", "heeded", "ignored", "not-ignored")
                assert served["type"] == expected, line
                for message in (answer.message, served.get("message")):
                    assert bool(message) == (expected != "heeded"), line
                    assert "\n" not in (message or ""), line
        watch.finish()


def test_what_is_ignored_stays_so_while_the_watch_is_off_and_on(target: Target) -> None:
    tids = waiting_tids(target)
    options = ("--watch", "--events", "--threshold", "100")
    with watcher(target.pid, options=options) as watch:
        for tid in tids[1:]:
            assert watch.ask(f"ignore {target.pid} {tid}", "ignored", "error")["tid"] == tid
        for state in ("off", "on"):
            watch.ask(f"watch {state}", "watch")
        make(target, f"mutex 1 {HELD_MS} {WAITERS}")
        watch.event(lambda event: event["tid"] == tids[0] and not event["in_flight"], "its end")
        assert {event["tid"] for event in watch.events()} == {tids[0]}


def test_captures_mark_an_ignored_thread(target: Target) -> None:
    tids = waiting_tids(target)
    with watcher(target.pid, options=()) as watch:
        assert watch.ask(f"ignore {target.pid} {tids[0]}", "ignored", "not-ignored")["tid"]
        for number, own in ((0, {tids[0]}), (1, set())):
            watch.say("snap")
            capture = watch.capture(number)
            assert {thread.tid for thread in capture.threads if thread.own} == own
            watch.ask(f"heed {target.pid} {tids[0]}", "heeded")

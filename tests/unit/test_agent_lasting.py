# SPDX-License-Identifier: Apache-2.0
"""Threads that must not end: their errors are logged and counted, and their work goes on."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

import pytest

from stallscope.agent.collecting import CollectorThreads
from stallscope.agent.events import Event, EventQueue, ProbeStatus, ThreadFailed
from stallscope.agent.output import LineWriter
from stallscope.agent.probe_session import ProbeSession, ProbeSettings
from stallscope.agent.verdict_process import Answers, VerdictRequest
from stallscope.agent.verdict_process.client import VerdictProcess
from stallscope.agent.writer import Writer
from stallscope.base import threads
from stallscope.base.meanwhile import Meanwhile
from stallscope.base.threads import Pulse, keep_running, name_of_thread, place_of, server_of_thread
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentfakes import FakeEnvironment, Status, running
from tests.unit.agentlog import Messages


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FIRST_PAUSE", 0.01)


def test_work_that_fails_begins_again() -> None:
    left = [ValueError("first"), KeyError("second")]
    failed: list[tuple[str, str]] = []

    def work() -> None:
        if left:
            raise left.pop(0)

    with Messages() as log:
        thread = keep_running("worker", work, lambda what, why: failed.append((what, why)))
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [what for what, _ in failed] == ["worker", "worker"]
    assert failed[0][1].startswith("ValueError: first [threads.py:")
    assert failed[0][1].endswith(" work]")
    assert [message.partition(": ")[0] for message in log.messages] == [
        "the thread worker failed and begins again"
    ] * 2


def test_names_of_threads_have_their_server() -> None:
    found: list[str] = []

    def run() -> None:
        thread = keep_running("writer", lambda: None)
        found.append(thread.name)

    thread = threading.Thread(target=run, name="orders/loop")
    thread.start()
    thread.join()
    assert found == ["orders/writer"]
    assert server_of_thread(found[0]) == "orders"
    assert server_of_thread("writer") is None
    assert server_of_thread(None) is None
    assert name_of_thread("x") == "x"


def test_a_pulse_and_the_place_of_a_thread() -> None:
    gate = threading.Event()

    def wait_here() -> None:
        gate.wait(PATIENCE)

    pulse = Pulse()
    thread = threading.Thread(target=wait_here)
    thread.start()
    wait_until(lambda: pulse.age > 0.01, "time has passed")
    wait_until(lambda: "wait_here" in place_of(thread), "it waits")
    pulse.beat()
    gate.set()
    thread.join()
    assert pulse.age < PATIENCE
    assert place_of(thread) == "it has ended"


class Broken:
    """Takes events, and cannot at first."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.fails = True

    def put(self, event: Event) -> None:
        if self.fails and not isinstance(event, ThreadFailed):
            raise RuntimeError("a bug")
        self.events.put(event)

    def failed(self, thread: str) -> None:
        """Wait until a thread has, and release it."""
        event = self.events.get(timeout=PATIENCE)
        assert isinstance(event, ThreadFailed)
        assert event.what == thread
        assert "RuntimeError: a bug" in event.why
        self.fails = False


def test_the_writer_goes_on_after_an_error_of_its_own() -> None:
    broken = Broken()
    writer = Writer(broken.put)
    with Messages():
        writer.submit(lambda: 1, lambda value: None)
        broken.failed("writer")
        writer.submit(lambda: 2, lambda value: None)
        assert broken.events.get(timeout=PATIENCE) is not None
    assert writer.busy_seconds == 0
    assert writer.close(PATIENCE)


def test_a_writer_whose_disk_hangs_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.agent.loop.SLOW_DISK_SECONDS", 0.05)
    gate = threading.Event()
    environment = FakeEnvironment()
    with running(environment, tmp_path) as agent:
        assert agent.problems() == []
        agent._writer.submit(lambda: gate.wait(PATIENCE))
        wait_until(agent.problems, "it is noticed")
        assert agent.problems()[0].startswith("the store's disk has not answered for ")
        agent._publish()
        assert agent.metrics.writer_busy > 0
        gate.set()
        wait_until(lambda: agent.problems() == [], "the disk answers")


def test_a_collectors_thread_goes_on_after_an_error_of_its_own() -> None:
    broken = Broken()
    collectors = CollectorThreads((Status(),), broken.put)
    with Messages():
        collectors.poll()
        broken.failed("collect-status")

        def sampled() -> bool:
            collectors.poll()
            return not broken.events.empty()

        wait_until(sampled, "it collects again")
    collectors.close()


def test_the_loop_counts_failures_of_threads(tmp_path: Path) -> None:
    with running(FakeEnvironment(), tmp_path) as agent:
        agent.events.put(ThreadFailed("probe", "a bug"))
        wait_until(lambda: agent.metrics.failures["thread"] == 1, "it is counted")
    samples = [sample for family in agent.metrics.families() for sample in family.samples]
    (count,) = [one.value for one in samples if one.labels.get("what") == "thread"]
    assert count == 1


def test_the_probes_thread_answers_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = EventQueue()
    calls = 0

    def arguments(*args: object, **named: object) -> list[str]:
        nonlocal calls
        calls += 1
        return ["serve"]

    class Broken:
        def __init__(self, *args: object, **named: object) -> None:
            raise RuntimeError("a bug")

    monkeypatch.setattr("stallscope.agent.probe_session.arguments", arguments)
    monkeypatch.setattr("stallscope.agent.probe_session.Stream", Broken)
    session = ProbeSession(ProbeSettings(tmp_path), events.put)
    seen: list[Event] = []
    with Messages() as log:
        session.start((1,))
        while calls < 2:
            seen.extend(events.take(0.01))
        session.close()
    assert any(isinstance(event, ThreadFailed) for event in seen)
    statuses = [event for event in seen if isinstance(event, ProbeStatus)]
    assert not any(status.ready for status in statuses)
    assert statuses
    assert any("the thread probe failed and begins again: RuntimeError" in m for m in log.messages)


def test_an_analysis_that_fails_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    process = VerdictProcess()

    def fail(*args: object) -> Answers:
        raise RuntimeError("a bug")

    monkeypatch.setattr(process, "_run", fail)
    found: queue.SimpleQueue[Answers] = queue.SimpleQueue()
    process.analyze([VerdictRequest("/a"), VerdictRequest("/b", known=True)], found.put)
    (answer,) = found.get(timeout=PATIENCE).each
    assert (answer.path, answer.error) == ("/a", "internal error: RuntimeError: a bug")


def test_analyses_of_several_servers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = threading.Lock()
    running_now = most = 0

    def run(self: VerdictProcess, requests: object) -> Answers:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        time.sleep(0.01)
        running_now -= 1
        return Answers(())

    monkeypatch.setattr(VerdictProcess, "_run", run)
    found: queue.SimpleQueue[Answers] = queue.SimpleQueue()
    for _ in range(5):
        VerdictProcess(turn=turn).analyze([VerdictRequest("/a")], found.put)
    for _ in range(5):
        found.get(timeout=PATIENCE)
    assert most == 1


def test_the_output_goes_on_after_an_error(tmp_path: Path) -> None:
    class Stream:
        """No file: its lines are written by its own method."""

        def __init__(self) -> None:
            self.written: list[str] = []

        def fileno(self) -> int:
            raise OSError

        def write(self, text: str) -> None:
            if not self.written:
                self.written.append("")
                raise ValueError("a bug")
            self.written.append(text)

    stream = Stream()
    writer = LineWriter(stream)  # type: ignore[arg-type]
    with Messages():
        writer.put("lost")
        writer.put("printed")
        wait_until(lambda: stream.written[-1:] == ["printed\n"], "the next line is printed")
        writer.close()


def test_a_call_meanwhile_has_its_result_or_its_error() -> None:
    asked = threading.Event()
    found = Meanwhile(lambda: asked.wait(PATIENCE), "a call")
    asked.set()
    assert found.result() is True
    assert found.result() is True, "it can be asked again"
    failed = Meanwhile(lambda: int("x"), "a call")
    with pytest.raises(ValueError):
        failed.result()

# SPDX-License-Identifier: Apache-2.0
"""Sending: retries, refusals, merging, and an end in time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.sending import SendError
from stallscope.fleet.batch import Batch, make
from stallscope.fleet.shipping import sender as sending
from stallscope.fleet.shipping.delivering import deliver, merged
from stallscope.fleet.shipping.sender import Numbers, Pace, Sender
from stallscope.fleet.shipping.spool import Spool, put_all
from stallscope.fleet.tables import AgentRow
from tests.support.servers.waiting import wait_until
from tests.unit.shipfakes import FakeDestination, names_of, stacks, wait_row

__all__: list[str] = []

SOON = Pace(heartbeat=3600, first=0, first_beat=3600, spread=0, retry=0.01, longest_retry=0.05)


@contextmanager
def sending_to(
    destination: FakeDestination,
    folder: Path,
    pace: Pace = SOON,
    beats: Callable[[Numbers], Sequence[AgentRow]] = lambda numbers: (),
) -> Iterator[Sender]:
    sender = Sender(destination, Spool(folder / "one", 1 << 20), pace, beats)
    try:
        yield sender
    finally:
        destination.gate.set()
        sender.close(5.0)


def put(sender: Sender, *names: str) -> None:
    put_all(sender.spool.folder.parent, [sender.spool], stacks(*names))
    sender.wake()


def beat(day: str = "2026-11-29", seen_ms: int = 5) -> AgentRow:
    return AgentRow(
        day=day,
        rev=seen_ms,
        host="db1",
        program="mysqld",
        pid=1,
        server="mysql",
        version="8.4",
        agent_version="1",
        boot="b",
        started_ms=1,
        seen_ms=seen_ms,
        watched_s=1.0,
        every_s=60.0,
        state="watching",
        skew_ms=None,
        waiting=0,
        dropped=0,
        why="",
        captures_lost=0,
    )


def sent(destination: FakeDestination) -> list[str]:
    return [name for batch in list(destination.batches) for name in names_of(batch)]


def test_batches_are_sent_in_their_order_and_removed(tmp_path: Path) -> None:
    destination = FakeDestination()
    with sending_to(destination, tmp_path) as sender:
        for number in range(10):
            put(sender, f"{number}a", f"{number}b")
        sender.start()
        wait_until(lambda: sender.numbers().waiting == 0, "all are sent")
        assert sent(destination) == [f"{n}{c}" for n in range(10) for c in "ab"]
        assert len(destination.batches) < 10, "those that wait go together"
        assert sender.numbers().sent == 20
    assert not list((tmp_path / "one").glob("*.zst"))
    assert destination.closed


def test_merging_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MERGED_ROWS", 7)
    destination = FakeDestination()
    with sending_to(destination, tmp_path) as sender:
        put(sender, *(f"x{number}" for number in range(20)))
        for number in range(20):
            put(sender, f"{number}a", f"{number}b")
        sender.start()
        wait_until(lambda: sender.numbers().waiting == 0, "all are sent")
    assert [batch.rows for batch in destination.batches][:2] == [20, 6]
    assert all(batch.rows <= 7 for batch in destination.batches[1:])


def test_a_failure_is_tried_again_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "stallscope")
    destination = FakeDestination()
    destination.fail("HTTP 503")
    with sending_to(destination, tmp_path) as sender:
        put(sender, "a")
        sender.start()
        wait_until(lambda: destination.asked >= 5, "it is tried again")
        assert sender.numbers().why == "HTTP 503"
        destination.fault = None
        wait_until(lambda: sender.numbers().waiting == 0, "it is sent")
        wait_until(lambda: sender.numbers().why == "", "it works")
        assert sender.numbers().failures >= 5
    said = [m for m in caplog.messages if "shipping to" in m]
    assert len(said) == 2
    assert "HTTP 503" in said[0]
    assert "works again" in said[1]


def test_what_an_engine_does_not_store_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    destination = FakeDestination()
    destination.notes = ("table incidents lacks shape: not stored",)
    with sending_to(destination, tmp_path) as sender:
        sender.start()
        for name in ("a", "b"):
            put(sender, name)
            wait_until(lambda: sender.numbers().waiting == 0, "it is sent")
    assert [m for m in caplog.messages if "lacks" in m] == [
        "shipping: table incidents lacks shape: not stored"
    ]


def test_a_stack_that_the_engine_has_is_not_sent_again(tmp_path: Path) -> None:
    destination = FakeDestination()
    with sending_to(destination, tmp_path) as sender:
        sender.start()
        for names in (("a", "b"), ("b", "c"), ("c",)):
            put(sender, *names)
            wait_until(lambda: sender.numbers().waiting == 0, "it is sent")
        assert sender.numbers().sent == 5, "what is there counts"
    assert sent(destination) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "error", [SendError("memory limit"), ValueError("oops"), SendError("late", unreachable=True)]
)
@pytest.mark.parametrize("at", [0, 30, 59])
def test_a_batch_that_is_not_taken_holds_no_other_back(
    tmp_path: Path, error: Exception, at: int
) -> None:
    destination = FakeDestination()

    def fault(batch: Batch) -> None:
        if "bad" in names_of(batch):
            raise error

    destination.fault = fault
    with sending_to(destination, tmp_path) as sender:
        names = [f"{number}" for number in range(60)]
        names[at] = "bad"
        for name in names:
            put(sender, name)
        sender.start()
        wait_until(lambda: sender.numbers().waiting == 1, "all others are sent")
        put(sender, "later")
        wait_until(lambda: "later" in sent(destination), "later ones too")
        assert sender.numbers().waiting == 1
        assert str(error) in sender.numbers().why
        assert len(sender._aside) == 1
        destination.fault = None
        wait_until(lambda: sender.numbers().waiting == 0, "it is sent too")
        wait_until(lambda: sender.numbers().why == "", "all is well")
        assert not sender._aside
    assert sorted(sent(destination)) == sorted([*names, "later"])


def test_an_engine_that_is_back_gets_the_batches_together(tmp_path: Path) -> None:
    destination = FakeDestination()
    destination.fail("HTTP 500")
    with sending_to(destination, tmp_path) as sender:
        for number in range(60):
            put(sender, f"{number}")
        sender.start()
        wait_until(lambda: len(sender._aside) >= 5, "some have failed alone")
        destination.fault = None
        wait_until(lambda: sender.numbers().waiting == 0, "all are sent")
        assert not sender._aside
    assert len(destination.batches) < 20


def test_stacks_are_not_sent_again_where_only_the_rest_failed(tmp_path: Path) -> None:
    destination = FakeDestination()

    def fault(batch: Batch) -> None:
        if "waits" in batch.lines:
            raise SendError("too many parts")

    destination.fault = fault
    with sending_to(destination, tmp_path) as sender:
        put_all(tmp_path, [sender.spool], merged([stacks("a"), make([wait_row(60_000)])]))
        sender.start()
        wait_until(lambda: destination.asked >= 4, "it is tried again")
        assert sender.numbers().waiting == 1
        destination.fault = None
        wait_until(lambda: sender.numbers().waiting == 0, "all are there")
    assert sent(destination).count("a") == 1
    assert len(destination.rows("waits")) == 1


def test_the_wish_of_an_engine_is_honoured_and_bounded(tmp_path: Path) -> None:
    now = [1000.0]
    pace = msgspec.structs.replace(SOON, longest_wish=50.0)
    destination = FakeDestination()
    sender = Sender(
        destination,
        Spool(tmp_path / "one", 1 << 20),
        pace,
        chance=random.Random(7),
        clock=lambda: now[0],
    )
    put(sender, "a")
    for wish, least, most in ((20.0, 20.0, 24.0), (1e9, 50.0, 60.0), (0.0, 0.0, 0.05)):
        destination.fail("busy", after=wish)
        sender._step()
        assert least <= sender._channel.not_before - now[0] <= most
    sender.close(0.0)


def test_a_reload_tries_again_at_once(tmp_path: Path) -> None:
    destination = FakeDestination()
    destination.fail("busy", after=3600.0)
    with sending_to(destination, tmp_path) as sender:
        put(sender, "a")
        sender.start()
        wait_until(lambda: sender._channel.not_before > sender._clock(), "it fails")
        sender.retry()
        wait_until(lambda: destination.asked == 2, "it is tried again")


def test_thousands_of_agents_do_not_come_at_once(tmp_path: Path) -> None:
    pace = Pace(first=5.0, retry=1.0, longest_retry=300.0)
    destination = FakeDestination()
    destination.fail("down")
    firsts, retries = [], []
    for seed in range(300):
        sender = Sender(
            destination,
            Spool(tmp_path / "one", 1 << 20),
            pace,
            chance=random.Random(seed),
            clock=lambda: 0.0,
        )
        firsts.append(sender._channel.not_before)
        for _ in range(12):
            sender._not_sent(SendError("down"))
        retries.append(sender._channel.not_before)
    assert max(firsts) - min(firsts) > 4.0
    assert min(retries) >= 150
    assert max(retries) <= 300
    assert max(retries) - min(retries) > 130
    for low in range(150, 300, 30):
        share = sum(low <= one < low + 30 for one in retries) / len(retries)
        assert share < 0.35, "they are spread out"


def test_a_bad_row_is_found_dropped_and_counted(tmp_path: Path) -> None:
    destination = FakeDestination()
    destination.refuse("bad", "worse")
    with sending_to(destination, tmp_path) as sender:
        put(sender, "a", "bad", "b", "c", "worse", "d")
        put(sender, "e")
        sender.start()
        wait_until(lambda: sender.numbers().waiting == 0, "all are sent or dropped")
        assert sorted(sent(destination)) == ["a", "b", "c", "d", "e"]
        numbers = sender.numbers()
        assert (numbers.sent, numbers.dropped) == (5, 2)
        assert "bad row" in numbers.dropped_why
    assert Spool(tmp_path / "one", 1 << 20).counts.rows == 2


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_all_rows_but_the_bad_ones_arrive(good: list[bool]) -> None:
    destination = FakeDestination()
    names = [f"{number}" for number in range(len(good))]
    destination.refuse(*(name for name, is_good in zip(names, good, strict=True) if not is_good))
    done = deliver(destination, stacks(*names))
    wanted = [name for name, is_good in zip(names, good, strict=True) if is_good]
    if wanted and good.count(False) <= 20:
        assert sorted(sent(destination)) == sorted(wanted)
    assert done.sent == len(sent(destination))
    assert done.sent + done.refused == len(names)


def test_an_engine_that_refuses_all_is_not_asked_for_each(tmp_path: Path) -> None:
    destination = FakeDestination()
    names = [f"{number}" for number in range(2_000)]
    destination.refuse(*names)
    assert deliver(destination, stacks(*names)).refused == 2_000
    assert destination.asked < 100


def test_a_failure_in_the_middle_counts_nothing_twice(tmp_path: Path) -> None:
    destination = FakeDestination()
    trouble = iter([False, False, True, *[False] * 100])

    def fault(batch: Batch) -> None:
        if next(trouble):
            raise SendError("connection reset")
        if "bad" in names_of(batch):
            raise SendError("bad row", refused=True)

    destination.fault = fault
    with sending_to(destination, tmp_path) as sender:
        put(sender, "a", "bad", "b", "c")
        sender.start()
        wait_until(lambda: sender.numbers().waiting == 0, "all are sent or dropped")
        assert set(sent(destination)) == {"a", "b", "c"}
        assert sender.numbers().dropped == 1


def test_heartbeats_go_with_batches_and_the_latest_of_a_day_is_kept(tmp_path: Path) -> None:
    destination = FakeDestination()
    destination.fail("down")
    seen = iter(range(1, 10_000))
    pace = msgspec.structs.replace(SOON, heartbeat=0.02, first_beat=0)
    beats = lambda numbers: [beat(seen_ms=next(seen))]  # noqa: E731
    with sending_to(destination, tmp_path, pace, beats) as sender:
        sender.start()
        sender.hold([beat("2026-11-28", 7)])
        wait_until(lambda: destination.asked >= 5, "it is tried")
        destination.fault = None
        wait_until(lambda: destination.rows("agents"), "heartbeats arrive")
        first = [msgspec.json.decode(one) for one in destination.batches[0].lines["agents"]]
        assert sorted(one["day"] for one in first) == ["2026-11-28", "2026-11-29"]
        assert len(sender._held) <= 2


def test_the_first_heartbeat_comes_once_a_server_is_watched(tmp_path: Path) -> None:
    destination = FakeDestination()
    found = iter([[], [], [beat()]])
    pace = msgspec.structs.replace(SOON, first_beat=0)
    with sending_to(destination, tmp_path, pace, lambda numbers: next(found)) as sender:
        sender.start()
        wait_until(lambda: destination.rows("agents"), "it arrives")


def test_an_end_sends_what_waits_and_hands_back_what_is_left(tmp_path: Path) -> None:
    destination = FakeDestination()
    late = msgspec.structs.replace(SOON, first=3600)
    sender = Sender(destination, Spool(tmp_path / "one", 1 << 20), late)
    put(sender, "a")
    sender.start()
    assert sender.close(5.0, [beat()]) == []
    assert sent(destination) == ["a"]
    assert len(destination.rows("agents")) == 1

    before = destination.asked
    destination.gate.clear()
    hanging = Sender(destination, Spool(tmp_path / "two", 1 << 20), SOON)
    put_all(tmp_path, [hanging.spool], stacks("b"))
    hanging.start()
    wait_until(lambda: destination.asked > before, "it hangs")
    assert hanging.close(0.1, [beat()]) == [beat()], "it does not wait for the engine"
    assert len(Spool(tmp_path / "two", 1 << 20)) == 1
    destination.gate.set()


def test_an_error_of_the_engines_code_is_a_failure(tmp_path: Path) -> None:
    destination = FakeDestination()

    def fault(batch: Batch) -> None:
        raise ValueError("oops")

    destination.fault = fault
    with sending_to(destination, tmp_path) as sender:
        put(sender, "a")
        sender.start()
        wait_until(lambda: "internal error" in sender.numbers().why, "it is said")
        destination.fault = None
        wait_until(lambda: sender.numbers().waiting == 0, "it is sent")


def test_a_spool_that_cannot_be_read_is_no_busy_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = FakeDestination()
    slow = msgspec.structs.replace(SOON, retry=3600, longest_retry=3600)
    with sending_to(destination, tmp_path, slow) as sender:
        put(sender, "a")
        reads = []

        def unreadable(waiting: object) -> None:
            reads.append(threading.get_ident())

        monkeypatch.setattr(sender.spool, "read", unreadable)
        sender.start()
        wait_until(lambda: "cannot be read" in sender.numbers().why, "it is said")
        assert len(reads) == 1

# SPDX-License-Identifier: Apache-2.0
"""Delivery: each destination gets each stall once, whatever fails meanwhile."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from stallscope.base.encoding import to_json
from stallscope.base.sending import SendError
from stallscope.notify import delivery as delivering_module
from stallscope.notify.alert import Alert, Event
from stallscope.notify.delivery import Delivery
from stallscope.notify.outbox import Entry, Outbox
from stallscope.notify.receiver import Receiver
from tests.support.chance import SEED
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentlog import Messages
from tests.unit.notifyscenes import INCIDENT, FakeReceiver, alert

__all__: list[str] = []


@contextmanager
def delivering(
    *receivers: Receiver, outbox: Path | None = None, seconds: float = 5.0
) -> Iterator[Delivery]:
    made = Delivery(None if outbox is None else Outbox(outbox), receivers)
    made.start()
    try:
        yield made
    finally:
        made.close(seconds)


def test_a_stall_and_its_end_are_sent_once_each() -> None:
    fake = FakeReceiver()
    with delivering(fake) as made:
        made.open(alert())
        wait_until(lambda: fake.events == ["stall"], "the stall is sent")
        made.update(alert(over=True))
        wait_until(lambda: fake.events == ["stall", "end"], "the end is sent")
        assert made.firing() == []
    assert fake.events == ["stall", "end"]


class Clock:
    """The time of a delivery, which goes on when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_notification_waits_for_the_verdict_and_no_longer() -> None:
    clock, fake = Clock(), FakeReceiver()
    made = Delivery(None, [fake], clock)
    made.open(alert(), hold=5.0)
    made.update(alert(), hold=None)
    made.open(alert("db1/2"), hold=60.0)
    made.update(alert("db1/2"))  # here is its verdict
    wait_until(lambda: keys(fake) == ["db1/2"], "the one that waits for nothing is sent")
    clock.now += 5.0
    made.open(alert("db1/3"))  # it is after the first one in the order
    wait_until(lambda: keys(fake) == ["db1/2", "db1/1", "db1/3"], "the other one waited enough")
    made.close(0.0)


def keys(fake: FakeReceiver) -> list[str]:
    return [one.key for _, one in list(fake.sent)]


def test_updates_go_to_those_that_keep_the_alert() -> None:
    plain, keeper = FakeReceiver("plain"), FakeReceiver("keeper", updates=True)
    with delivering(plain, keeper) as made:
        made.open(alert())
        wait_until(lambda: plain.events == keeper.events == ["stall"], "both got it")
        made.update(alert(name="20261121T150000.000Z-mariadbd-4711"))
        wait_until(lambda: keeper.events == ["stall", "update"], "the update is sent")
        made.update(alert(over=True))
        wait_until(lambda: plain.events == ["stall", "end"], "the end is sent")
    assert keeper.events == ["stall", "update", "end"]


def test_a_stall_that_is_over_before_anybody_could_be_reached_is_sent_all_the_same() -> None:
    fake = FakeReceiver()
    fake.error = SendError("it is down")
    with delivering(fake) as made:
        made.open(alert())
        wait_until(lambda: fake.tries > 0, "it is tried")
        made.update(alert(over=True))
        fake.error = None
        wait_until(lambda: fake.events == ["stall", "end"], "both are sent, in order")


def test_a_destination_that_hangs_delays_no_other() -> None:
    slow, quick = FakeReceiver("slow"), FakeReceiver("quick")
    slow.gate.clear()
    with delivering(slow, quick, seconds=0.1) as made:
        for number in range(20):
            made.open(alert(f"db1/{number}"))
        wait_until(lambda: len(quick.sent) == 20, "the other one gets all")
        assert slow.sent == []
        slow.gate.set()
        wait_until(lambda: len(slow.sent) == 20, "it gets all, too")
    assert sorted(one.key for _, one in slow.sent) == sorted(f"db1/{n}" for n in range(20))


class Picky(FakeReceiver):
    """Does not take some alerts."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.poison: Exception | None = error
        self.begun: list[str] = []

    def send(self, event: Event, alert: Alert) -> None:
        self.begun.append(alert.key)
        if "bad" in alert.key and self.poison is not None:
            raise self.poison
        super().send(event, alert)


@pytest.mark.parametrize(
    "error",
    [
        SendError("500"),
        SendError("400", refused=True),
        RuntimeError("a mistake"),
        SendError("timed out", unreachable=True),
    ],
)
def test_an_alert_that_is_not_taken_delays_no_other(error: Exception) -> None:
    fake = Picky(error)
    good = [f"db1/{number}" for number in range(20)]
    with delivering(fake, seconds=0.1) as made:
        made.open(alert("db1/bad"))
        wait_until(lambda: fake.begun, "it is tried")
        for key in good:
            made.open(alert(key))
            made.update(alert(key, over=True))
        wait_until(lambda: len(fake.sent) == 40, "the good ones and their ends are sent")
        assert made.waiting() == {"fake": 1}
        assert str(error) in made.problems()["fake"]
        made.update(alert("db1/bad", over=True))
        fake.poison = None
        made.configure([fake])
        wait_until(lambda: not made.waiting()["fake"], "it is sent too")
        assert made.problems() == {}
    assert [event for event, one in fake.sent if one.key == "db1/bad"] == ["stall", "end"]


def test_an_alert_that_hangs_again_delays_no_other() -> None:
    class Hangs(Picky):
        def send(self, event: Event, alert: Alert) -> None:
            if alert.key in self.begun:
                self.gate.clear()
                self.gate.wait()
            super().send(event, alert)

    fake = Hangs(SendError("500"))
    with delivering(fake, seconds=0.1) as made:
        made.open(alert("db1/bad"))
        wait_until(lambda: not fake.gate.is_set(), "it hangs, the second time")
        fake_gate, fake.gate = fake.gate, threading.Event()
        fake.gate.set()
        made.open(alert("db1/good"))
        wait_until(lambda: keys(fake) == ["db1/good"], "the other one is sent")
        fake_gate.set()


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(SendError("down", unreachable=True), 4.0), (SendError("503", after=17.0), 20.4)],
)
def test_a_destination_that_gives_no_answer_is_left_alone(error: SendError, seconds: float) -> None:
    clock, fake, other = Clock(), FakeReceiver(), FakeReceiver("other")
    fake.error = error
    made = Delivery(None, [fake, other], clock)
    made.open(alert("db1/1"))
    wait_until(lambda: made.failed == 1, "it fails")
    made.open(alert("db1/2"))
    wait_until(lambda: len(other.sent) == 2, "the other destination gets both")
    assert fake.tries == 1
    assert made.problems() == {"fake": str(error)}
    fake.error = None
    clock.now += seconds
    made.open(alert("db1/3"))
    wait_until(lambda: sorted(keys(fake)) == ["db1/1", "db1/2", "db1/3"], "all are sent")
    made.close(0.0)


def test_one_that_is_taken_at_last_brings_the_others() -> None:
    clock, fake = Clock(), Picky(SendError("400", refused=True))
    made = Delivery(None, [fake], clock)
    for number in range(3):
        made.open(alert(f"db1/bad{number}"))
    wait_until(lambda: made.failed == 3, "none is taken")
    clock.now += 1.0
    fake.poison = SendError("500")
    made.open(alert("db1/bad3"))
    wait_until(lambda: made.failed == 4, "this one is to be tried before the others")
    fake.poison = None
    clock.now += 1.0
    made.open(alert("db1/good"))
    wait_until(lambda: len(fake.sent) == 5, "all are sent, though their pause is not over")
    made.close(0.0)


def test_failures_are_logged_once_and_counted() -> None:
    fake = FakeReceiver()
    fake.error = SendError("connection refused", unreachable=True)
    with Messages() as log, delivering(fake, seconds=0.0) as made:
        made.open(alert())
        wait_until(lambda: fake.tries >= 2, "it is tried again")
        assert made.failed >= 1
        assert made.problems() == {"fake": "connection refused"}
        fake.error = None
        wait_until(lambda: fake.sent, "it works again")
        said = [line for line in log.messages if "fake" in line]
    assert said[0] == "destination fake: connection refused; it is tried again"
    assert said[1].startswith("destination fake works again, after ")
    assert len(said) == 2


def test_an_error_of_a_destination_ends_no_thread() -> None:
    class Broken(FakeReceiver):
        def send(self, event: Event, alert: Alert) -> None:
            self.tries += 1
            if self.tries == 1:
                raise RuntimeError("a mistake")
            super().send(event, alert)

    fake = Broken()
    with Messages() as log, delivering(fake) as made:
        made.open(alert())
        wait_until(lambda: fake.events == ["stall"], "it is sent")
        assert "internal error: RuntimeError: a mistake" in log.messages[0]


def test_what_was_not_delivered_is_sent_at_the_next_start(tmp_path: Path) -> None:
    fake = FakeReceiver()
    fake.error = SendError("down")
    file = tmp_path / "outbox.sqlite"
    with delivering(fake, outbox=file, seconds=1.0) as made:
        made.open(alert())
        wait_until(lambda: fake.tries > 0, "it is tried")
    assert file.stat().st_mode & 0o777 == 0o600
    again = FakeReceiver()
    with delivering(again, outbox=file) as made:
        wait_until(lambda: again.events == ["stall"], "it is sent")
        assert [one.key for one in made.firing()] == ["db1/1"]
        made.update(alert(over=True))
        wait_until(lambda: again.events == ["stall", "end"], "its end, too")
    third = FakeReceiver()
    with delivering(third, outbox=file) as made:
        wait_until(made.loaded.is_set, "the file is read")
        assert made.firing() == []
        assert made.knows(alert().incident.id)
    assert third.events == []


def test_what_was_delivered_is_not_sent_again_at_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "outbox.sqlite"
    fake, down = FakeReceiver("fake"), FakeReceiver("down")
    down.error = SendError("down")
    with delivering(fake, down, outbox=file, seconds=1.0) as made:
        made.open(alert())
        wait_until(lambda: fake.events == ["stall"] and down.tries > 0, "one of them got it")
    again, up = FakeReceiver("fake"), FakeReceiver("down")
    with delivering(again, up, outbox=file) as made:
        wait_until(lambda: up.events == ["stall"], "the other one got it")
        made.update(alert(over=True))
        wait_until(lambda: up.events == ["stall", "end"], "and its end")
        wait_until(lambda: again.events == ["end"], "the first got the end alone")


@pytest.mark.parametrize("fault", ["missing folder", "damaged", "is a folder", "link"])
def test_an_outbox_that_cannot_be_used_holds_nothing_back(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "outbox.sqlite"
    if fault == "missing folder":
        (tmp_path / "x").write_text("")
        file = tmp_path / "x" / "outbox.sqlite"
    elif fault == "damaged":
        file.write_bytes(b"no database" * 1000)
    elif fault == "is a folder":
        file.mkdir()
    else:
        file.symlink_to("/nonexistent/elsewhere")
    fake = FakeReceiver()
    with Messages() as log, delivering(fake, outbox=file, seconds=1.0) as made:
        made.open(alert())
        wait_until(lambda: fake.events == ["stall"], "it is sent")
        if fault == "damaged":
            wait_until(lambda: (tmp_path / "outbox.sqlite.damaged").exists(), "it is moved away")
        else:
            assert "the outbox is not written" in log.messages[0]


def test_a_disk_that_hangs_holds_a_notification_back_for_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    class Stuck(Outbox):
        def save(self, changed: object, ended: object) -> None:
            gate.wait(PATIENCE)

    fake = FakeReceiver()
    made = Delivery(Stuck(tmp_path / "outbox.sqlite"), [fake])
    made.start()
    made.open(alert())
    wait_until(lambda: fake.events == ["stall"], "it is sent")
    made.update(alert(over=True))
    wait_until(lambda: fake.events == ["stall", "end"], "its end, too")
    gate.set()
    made.close(1.0)


def test_an_outbox_that_can_be_read_later_is_sent_then(tmp_path: Path) -> None:
    file, fake, down = tmp_path / "outbox.sqlite", FakeReceiver(), FakeReceiver()
    down.error = SendError("down")
    with delivering(down, outbox=file, seconds=1.0) as made:
        made.open(alert())
        wait_until(lambda: down.tries > 0, "it is tried")
    file.rename(tmp_path / "kept")
    file.mkdir()
    with delivering(fake, outbox=file) as made:
        wait_until(made.loaded.is_set, "nobody waits for it")
        assert fake.events == []
        file.rmdir()
        (tmp_path / "kept").rename(file)
        wait_until(lambda: fake.events == ["stall"], "it is sent")


def test_nothing_waits_while_a_stall_goes_on() -> None:
    plain, keeper = FakeReceiver("plain"), FakeReceiver("keeper", updates=True)
    with delivering(plain, keeper) as made:
        made.open(alert())
        wait_until(lambda: plain.events == keeper.events == ["stall"], "both got it")
        made.update(alert(name="another"))
        wait_until(lambda: made.waiting() == {"plain": 0, "keeper": 0}, "nothing waits")


def test_a_reload_changes_destinations_and_loses_nothing() -> None:
    old, new = FakeReceiver("a"), FakeReceiver("a")
    old.error = SendError("wrong key", refused=True)
    other = FakeReceiver("b")
    with delivering(old) as made:
        made.open(alert())
        wait_until(lambda: old.tries == 1, "it is refused")
        made.configure([new, other])
        wait_until(lambda: new.events == ["stall"], "the new one gets it at once")
        wait_until(lambda: other.events == ["stall"], "and one that was added")
        made.configure([])
        made.update(alert(over=True))
        assert made.firing() == []


WARNING = msgspec.structs.replace(alert(), severity="warning")


def test_a_severity_that_rises_is_sent_again_and_never_falls(tmp_path: Path) -> None:
    class Critical(FakeReceiver):
        least_severity = "critical"

    plain, pager = FakeReceiver("plain"), Critical("pager")
    file = tmp_path / "outbox.sqlite"
    with delivering(plain, pager, outbox=file) as made:
        made.open(WARNING)
        made.open(alert("db1/2"))
        wait_until(lambda: keys(pager) == ["db1/2"], "the critical one")
        wait_until(lambda: len(plain.sent) == 2, "both")
        made.update(alert())
        wait_until(lambda: len(pager.sent) == 2, "the other one became critical")
        wait_until(lambda: len(plain.sent) == 3, "and is sent again")
        made.update(WARNING)
        assert made.firing()[0].severity == "critical"
    again, pager_again = FakeReceiver("plain"), Critical("pager")
    with delivering(again, pager_again, outbox=file) as made:
        wait_until(made.loaded.is_set, "the file is read")
        made.update(msgspec.structs.replace(WARNING, over=True))
        wait_until(lambda: again.sent and pager_again.sent, "the ends are sent")
    got = [(event, one.severity, one.first) for event, one in plain.sent if one.key == "db1/1"]
    assert got == [("stall", "warning", None), ("update", "critical", "warning")]
    assert [(event, one.severity, one.first) for event, one in again.sent] == [
        ("end", "critical", "warning")
    ]
    assert [(event, one.severity, one.first) for event, one in pager_again.sent] == [
        ("end", "critical", "critical")
    ]


def test_an_end_has_the_severity_that_the_destination_got() -> None:
    fake = FakeReceiver()
    with delivering(fake) as made:
        made.open(WARNING)
        wait_until(lambda: fake.events == ["stall"], "it is sent")
        made.update(alert(over=True))
        wait_until(lambda: fake.events == ["stall", "end"], "the end, and no news before it")
    assert fake.sent[1][1].severity == "warning"


def test_repetition_while_it_fires() -> None:
    class Repeats(FakeReceiver):
        repeat = 10.0
        least_firing = 25.0

    clock, fake = Clock(), Repeats()
    made = Delivery(None, [fake], clock)

    def sent_at(now: float, *, over: bool = False) -> list[str]:
        """Return what was sent of the first alert until ``now``, when another one is sent too."""
        made.update(alert(over=over))
        clock.now = now
        made.open(alert(f"at {now}"))
        wait_until(lambda: f"at {now}" in keys(fake), "the other one is sent")
        wait_until(lambda: not made.waiting()["fake"] or over, "it is known to be sent")
        return [event for event, one in list(fake.sent) if one.key == "db1/1"]

    made.open(alert())
    assert sent_at(100.0) == ["stall"]
    assert sent_at(109.9) == ["stall"]
    assert sent_at(110.0) == ["stall", "update"]
    assert sent_at(124.9, over=True) == ["stall", "update"]  # it is over, and not repeated
    assert sent_at(125.0, over=True) == ["stall", "update", "end"]
    made.close(0.0)


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from stallscope.notify.delivery import Delivery
from stallscope.notify.outbox import Entry, Outbox
from tests.support.servers.waiting import wait_until
from tests.unit.notifyscenes import INCIDENT, FakeReceiver, alert

class Prints(FakeReceiver):
    def send(self, event, alert):
        with open(sys.argv[3], "a") as file:
            file.write(f"{alert.key}#{event}\\n")
made = Delivery(Outbox(Path(sys.argv[2])), [Prints("fake")])
made.start()
made.loaded.wait()
for number in range(int(sys.argv[4]), int(sys.argv[4]) + 20):
    made.open(alert(f"db1/{number}", name=f"i{number}"))
    print(number, flush=True)
    made.update(alert(f"db1/{number}", over=True, name=f"i{number}"))
    # Of some it is killed after their end was sent, however fast it is.
    if number % 3 == 0:
        wait_until(lambda: not made.waiting()["fake"], "all is sent")
made.close(10)
"""


@pytest.mark.large
def test_kills_at_any_moment_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    """An alert that is on disk is sent, whenever the agent is killed; a repetition has its key."""
    chance = random.Random(SEED)
    file, sent = tmp_path / "outbox.sqlite", tmp_path / "sent"
    sent.write_text("")
    begun: set[int] = set()
    for turn in range(12):
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", KILLED, os.getcwd(), file, sent, str(turn * 20)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        stop = chance.randrange(20)
        for line in child.stdout:
            begun.add(int(line))
            if len(begun) % 20 == stop:
                break
        child.kill()
        child.wait()
        child.stdout.close()
    outbox = Outbox(file)
    saved = [entry.alert for entry in outbox.load()[0]]
    outbox.close()
    fake = FakeReceiver()
    with delivering(fake, outbox=file) as made:
        wait_until(made.loaded.is_set, "the file is read")
        wait_until(lambda: not made.waiting()["fake"], "all is sent")
    got = [*sent.read_text().split(), *(f"{one.key}#{event}" for event, one in fake.sent)]
    assert {f"{one.key}#stall" for one in saved} <= set(got)
    assert {f"{one.key}#end" for one in saved if one.over} <= set(got)
    # What was sent has its stall before its end.
    ends = [name for name in got if name.endswith("#end")]
    assert ends
    for name in ends:
        assert got.index(name.replace("#end", "#stall")) < got.index(name)


def test_an_outbox_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "outbox.sqlite"
    progress = {"opened": True, "closed": False, "revision": 1, "severity": "warning"}
    value = msgspec.to_builtins(Entry(WARNING, (WARNING.incident.id,)))
    del value["alert"]["first"]
    value["progress"] = {"fake": progress}
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE alerts (number INTEGER PRIMARY KEY, key TEXT UNIQUE, value)")
        database.execute("INSERT INTO alerts VALUES (1, 'db1/1', ?)", (to_json(value),))
    fake = FakeReceiver()
    with delivering(fake, outbox=file) as made:
        wait_until(made.loaded.is_set, "the file is read")
        made.update(alert())
        wait_until(lambda: fake.events == ["update"], "it became critical")
        assert (fake.sent[0][1].first, fake.sent[0][1].severity) == ("warning", "critical")


def test_too_much_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(to_json(alert()))
    monkeypatch.setattr(delivering_module, "MAX_BYTES", 10 * size + size // 2)
    fake = FakeReceiver()
    fake.error = SendError("500")
    with Messages() as log, delivering(fake, seconds=0.0) as made:
        for number in range(10):
            made.open(alert(f"db1/{number}"))
        made.update(alert("db1/5", over=True))
        for number in range(10, 13):
            made.open(alert(f"x{number}"))
        assert made.waiting() == {"fake": 10}
        assert made.failed >= 3
    given_up = [line.partition(":")[0] for line in log.messages if "given up" in line]
    assert given_up == ["db1/5", "db1/0", "db1/1"], "what is over goes first"


def test_an_alert_that_is_too_large_is_kept_without_its_captures(tmp_path: Path) -> None:
    capture = INCIDENT.captures[0]
    large = msgspec.structs.replace(INCIDENT, captures=(capture,) * 10_000)
    fake = FakeReceiver()
    fake.error = SendError("down")
    file = tmp_path / "outbox.sqlite"
    with delivering(fake, outbox=file, seconds=1.0) as made:
        made.open(msgspec.structs.replace(alert(), incident=large))
        wait_until(lambda: fake.tries > 0, "it is tried")
    again = FakeReceiver()
    with delivering(again, outbox=file):
        wait_until(lambda: again.sent, "it is sent at the next start")
    assert again.sent[0][1].incident == msgspec.structs.replace(INCIDENT, captures=())


@pytest.mark.large
def test_nothing_grows_with_alerts_and_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering_module._log, "disabled", True)  # pytest keeps what is logged

    class Sink(FakeReceiver):
        repeat = 60.0

        def send(self, event: Event, alert: Alert) -> None:
            if alert.key == "bad":
                raise SendError("500")

    def turn(numbers: range) -> int:
        for number in numbers:
            made.open(alert(f"db1/{number}", name=f"i{number}"))
            made.update(alert(f"db1/{number}", name=f"i{number}", over=True))
            if number % 10 == 0:
                made.configure([Sink("kept"), Sink(f"new{number}")])
                made.update(alert("long", name=f"i{number}"))
        made.configure([Sink("kept"), Sink("last")])
        wait_until(lambda: len(made.firing()) == 2 and made.waiting()["kept"] == 1, "all is sent")
        wait_until(lambda: threading.active_count() <= threads + 4, "old threads have ended")
        gc.collect()
        return len(gc.get_objects())

    threads = threading.active_count()
    with delivering(seconds=0.0) as made:
        made.open(alert("long"))
        made.open(alert("bad"))
        before = turn(range(2_000))
        after = turn(range(2_000, 12_000))
    assert after - before < 500

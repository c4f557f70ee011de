# SPDX-License-Identifier: Apache-2.0
"""Alerts: one for each stall, whatever number of incidents and agents record it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stallscope.model.capture import Note
from stallscope.model.incident import Fired, Incident, Verdict
from stallscope.model.stallstatus import Status
from stallscope.notify.alert import Alert, body, facts, severity, title
from stallscope.notify.alerts import Alerts, Rules
from stallscope.notify.delivery import Delivery
from stallscope.notify.outbox import Outbox
from tests.support.servers.waiting import wait_until
from tests.unit.notifyscenes import INCIDENT, FakeReceiver, alert, incident

FOLDER = Path("/var/lib/stallscope/incidents/x")
UNKNOWN = msgspec.structs.replace(INCIDENT, verdict=None, captures=())
NS = 1_000_000_000
NOW_NS = 1000 * NS
WALL_NS = INCIDENT.start_ns + 60 * NS


class Scene:
    """Alerts, and a destination in memory."""

    def __init__(self, outbox: Path | None = None, **rules: object) -> None:
        self.fake = FakeReceiver()
        delivery = Delivery(None if outbox is None else Outbox(outbox), [self.fake])
        delivery.start()
        assert delivery.loaded.wait(20)
        made = msgspec.convert({"hold": 2.0, "critical_threads": 20, "link": ""} | rules, Rules)
        self.alerts = Alerts(delivery, made)

    def known(self, **statuses: Status) -> list[str]:
        """Take what is known of triggers, those clear for three seconds; return what is over."""
        given = {name: (status, NOW_NS - 3 * NS) for name, status in statuses.items()}
        return [one.key for one in self.alerts.judge(given, NOW_NS, WALL_NS)]

    def got(self, *events: str) -> None:
        """Wait for these; whether it became critical only later is a matter of moments."""

        def sent() -> tuple[str, ...]:
            return tuple(event for event in self.fake.events if event != "update")

        wait_until(lambda: sent() == events, f"{events} are sent")

    def close(self) -> None:
        self.alerts.delivery.close(5.0)


def joins(trigger: str, second: int = 0) -> Fired:
    return Fired(trigger, f"{trigger} is over its threshold", INCIDENT.start_ns + second * NS)


def test_a_stall_is_notified_with_its_verdict() -> None:
    scene = Scene(hold=60.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    scene.alerts.take("verdict", 1, INCIDENT, FOLDER)
    assert scene.fake.events == []
    scene.alerts.take("stall", 1, INCIDENT, FOLDER)
    scene.got("stall")
    found = scene.fake.sent[0][1]
    assert found.key == f"db1/{INCIDENT.id}"
    assert found.path == str(FOLDER)
    assert found.incident.verdict == INCIDENT.verdict
    assert scene.known(threads=Status.CLEAR) == [found.key]
    scene.got("stall", "end")
    over = scene.fake.sent[1][1]
    assert (over.end_ns, dict(facts(over))["lasted"]) == (WALL_NS - 3 * NS, "57.0 s")
    for event in ("verdict", "ending", "end"):  # its recovery is recorded meanwhile
        scene.alerts.take(event, 1, INCIDENT, FOLDER)
    assert scene.alerts.open == []
    scene.close()


@pytest.mark.parametrize("status", [Status.STALLED, Status.UNKNOWN])
def test_only_clear_values_end_an_alert(status: Status) -> None:
    scene = Scene(hold=0.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    scene.alerts.joined(1, joins("sync"))
    for event in ("stall", "ending", "end"):
        scene.alerts.take(event, 1, INCIDENT, FOLDER)
    assert scene.known(threads=status, sync=Status.CLEAR, other=Status.CLEAR) == []
    assert scene.known(threads=Status.CLEAR, sync=status) == []
    assert len(scene.known(threads=Status.CLEAR, sync=Status.CLEAR)) == 1
    scene.got("stall", "end")
    scene.close()


def test_a_breach_after_the_end_is_another_alert_of_the_same_incident() -> None:
    scene = Scene(hold=0.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    scene.got("stall")
    assert len(scene.known(threads=Status.CLEAR)) == 1
    scene.alerts.joined(1, joins("threads", 70))
    scene.got("stall", "end", "stall")
    assert len({one.key for _, one in scene.fake.sent}) == 2
    assert scene.known(threads=Status.STALLED) == []
    assert len(scene.known(threads=Status.CLEAR)) == 1
    scene.got("stall", "end", "stall", "end")
    scene.close()


def test_an_alert_whose_triggers_were_removed_is_over() -> None:
    scene = Scene(hold=0.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    assert len(scene.known(other=Status.UNKNOWN)) == 1
    scene.close()


def test_an_event_has_an_alert_of_its_own_and_has_it_once() -> None:
    scene = Scene(hold=0.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    ended = msgspec.structs.replace(UNKNOWN, id="x", triggers=(joins("server-ended"),))
    assert scene.alerts.event(ended, "critical")
    assert not scene.alerts.event(msgspec.structs.replace(ended, id="y"), "critical")
    scene.got("stall", "stall")
    of_event = scene.fake.sent[1][1]
    assert (of_event.severity, "verdict" in dict(facts(of_event))) == ("critical", False)
    # A stall of the next process continues that of the one before, and not the event.
    for event in ("ending", "end"):
        scene.alerts.take(event, 1, UNKNOWN, FOLDER)
    scene.alerts.take("open", 2, incident("another"), None)
    assert len(scene.alerts.open) == 2
    clear = {"threads": Status.UNKNOWN, "server-ended": Status.CLEAR}
    given = {name: (status, NOW_NS) for name, status in clear.items()}
    assert [one.incident.id for one in scene.alerts.judge(given, NOW_NS, WALL_NS)] == ["x"]
    scene.close()


def test_the_severity_rises_and_never_falls() -> None:
    scene = Scene(hold=60.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    seen = [scene.alerts.open[0].severity]
    for found in (INCIDENT, UNKNOWN):
        scene.alerts.take("verdict", 1, found, None)
        seen.append(scene.alerts.open[0].severity)
    assert seen == ["warning", "critical", "critical"]
    scene.close()


def test_where_limits_let_nobody_see_it_a_stall_is_as_bad_as_the_time_before() -> None:
    scene = Scene(hold=0.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    scene.alerts.take("verdict", 1, INCIDENT, None)
    assert len(scene.known(threads=Status.CLEAR)) == 1
    again = msgspec.structs.replace(UNKNOWN, id="x", notes=(Note("suppressed", "so soon"),))
    scene.alerts.take("open", 2, msgspec.structs.replace(again, notes=()), None)
    seen = [scene.alerts.open[0].severity]
    scene.alerts.take("fire", 2, again, None)
    assert [*seen, scene.alerts.open[0].severity] == ["warning", "critical"]
    scene.close()


def test_what_is_critical_already_waits_for_no_verdict() -> None:
    scene = Scene(hold=3600.0)
    hangs = msgspec.structs.replace(UNKNOWN, triggers=(joins("no-answer"),))
    scene.alerts.take("open", 1, hangs, None)
    scene.got("stall")
    scene.close()


def test_a_stall_without_a_verdict_is_notified_after_the_hold() -> None:
    scene = Scene(hold=0.05)
    scene.alerts.take("open", 1, UNKNOWN, None)
    scene.got("stall")
    scene.close()


@pytest.mark.parametrize(
    "ended",
    [
        msgspec.structs.replace(INCIDENT, interrupted=True),
        msgspec.structs.replace(INCIDENT, notes=(Note("pass-ended", "x"),)),
        msgspec.structs.replace(INCIDENT, notes=(Note("goes-on", "x"),)),
    ],
)
def test_an_incident_that_ends_before_its_stall_leaves_the_alert_open(ended: Incident) -> None:
    scene = Scene(hold=0.0)
    scene.alerts.take("open", 1, UNKNOWN, None)
    scene.alerts.take("stall", 1, INCIDENT, FOLDER)
    scene.got("stall")
    for event in ("ending", "end"):
        scene.alerts.take(event, 1, ended, FOLDER)
    assert len(scene.alerts.open) == 1
    # The same stall goes on in another incident: nobody is notified again.
    scene.alerts.take("open", 2, incident("another"), None)
    for event in ("stall", "ending", "end"):
        scene.alerts.take(event, 2, incident("another"), FOLDER)
    assert len(scene.known(threads=Status.CLEAR)) == 1
    scene.got("stall", "end")
    assert {one.key for _, one in scene.fake.sent} == {f"db1/{INCIDENT.id}"}
    scene.close()


def test_a_killed_agent_is_continued_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "outbox.sqlite"
    first = Scene(file, hold=0.0)
    first.alerts.take("open", 1, UNKNOWN, None)
    first.got("stall")
    first.close()  # without an end of the incident
    second = Scene(file, hold=0.0)
    left = msgspec.structs.replace(UNKNOWN, interrupted=True)
    second.alerts.recovered(left, FOLDER)
    second.alerts.take("open", 1, incident("another"), None)
    second.alerts.take("stall", 1, incident("another"), FOLDER)
    assert second.known(threads=Status.UNKNOWN) == []
    assert len(second.known(threads=Status.CLEAR)) == 1
    second.got("end")
    second.close()


def test_an_incident_that_nobody_was_notified_of_is_notified_at_the_next_start(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path / "outbox.sqlite", hold=0.0)
    scene.alerts.recovered(msgspec.structs.replace(UNKNOWN, interrupted=True), FOLDER)
    scene.got("stall")
    assert len(scene.known(threads=Status.CLEAR)) == 1
    scene.got("stall", "end")
    scene.close()
    again = Scene(tmp_path / "outbox.sqlite", hold=0.0)
    again.alerts.recovered(msgspec.structs.replace(UNKNOWN, interrupted=True), FOLDER)
    assert again.known(threads=Status.CLEAR) == []
    again.close()
    assert again.fake.events == []


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        (UNKNOWN, "warning"),
        (msgspec.structs.replace(UNKNOWN, verdict=Verdict("x", "x", 0.9, 3)), "warning"),
        (msgspec.structs.replace(UNKNOWN, verdict=Verdict("x", "x", 0.9, 20)), "critical"),
        (
            msgspec.structs.replace(UNKNOWN, verdict=Verdict("x", "x", 0.9, 3, share=0.6)),
            "critical",
        ),
        (msgspec.structs.replace(UNKNOWN, verdict=Verdict("x", "x", 0.9, 1, share=1.0)), "warning"),
        (
            msgspec.structs.replace(
                UNKNOWN,
                triggers=(msgspec.structs.replace(UNKNOWN.triggers[0], trigger="no-answer"),),
            ),
            "critical",
        ),
    ],
)
def test_severity_is_from_the_impact(found: Incident, meant: str) -> None:
    assert severity(found, 20) == meant


def test_words() -> None:
    made = msgspec.structs.replace(alert(), path=str(FOLDER), link="https://x/1")
    assert title(made) == "mariadbd on db1: metadata-lock, 20 threads"
    assert dict(facts(made)) == {
        "stall": "Statements wait for a metadata lock",
        "blocker": 'thread 12 "connection", connection 88, user app',
        "statement": "ALTER TABLE t ADD c INT",
        "what to do": "KILL 88;",
        "waiting": "20 threads",
        "confidence": "0.89",
        "trigger": "threads: Threads_running 187 > 40; $(reboot)",
        "incident": str(FOLDER),
        "more": "https://x/1",
    }
    unknown = Alert("k", UNKNOWN, "db1", "warning")
    assert title(unknown) == "mariadbd on db1: threads"
    assert dict(facts(unknown))["verdict"] == "not yet known"


def test_the_first_lines_head_the_message() -> None:
    lines = ("mariadbd: a stall for 246 s: 20 of 24 threads wait.", "  KILL 88;", "\x1b[31m")
    assert INCIDENT.verdict is not None
    verdict = msgspec.structs.replace(
        INCIDENT.verdict, lines=lines, ending="KILL 88;", effect="app: its connection ends"
    )
    known = msgspec.structs.replace(INCIDENT, verdict=verdict)
    made = msgspec.structs.replace(alert(), incident=known)
    found = body(made)
    assert found[:2] == list(lines[:2])
    assert "\x1b" not in "".join(found)
    assert not any(line.startswith(("stall:", "blocker:")) for line in found), "twice"
    assert any(line.startswith("trigger:") for line in found)
    assert dict(facts(made))["to end it"] == "KILL 88;"
    assert not set(lines) & set(body(msgspec.structs.replace(made, over=True)))

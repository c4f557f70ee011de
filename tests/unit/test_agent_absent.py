# SPDX-License-Identifier: Apache-2.0
"""A server that was watched before and does not run: its agent says so, with nothing to watch."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.agent import absent
from stallscope.agent.absent import Absent
from stallscope.model.incident import TargetEntry
from stallscope.notify.alerts import Alerts, Rules
from stallscope.notify.delivery import Delivery
from stallscope.notify.outbox import Outbox
from stallscope.store.serverstate import AGENT_LOCK, ServerState
from tests.support.servers.waiting import wait_until
from tests.unit.notifyscenes import FakeReceiver

TARGET = TargetEntry(4711, "mariadbd", 99, host="db1")


class Scene:
    def __init__(self, dest: Path) -> None:
        self.state = ServerState.open(dest, "db-12345678")
        self.fake = FakeReceiver()
        self.absent = Absent(lambda: (self.state, TARGET), self._alerts)

    def _alerts(self, state: ServerState) -> Alerts:
        outbox = Outbox(state.path / "outbox.sqlite")
        return Alerts(Delivery(outbox, [self.fake]), Rules(2.0, 20, ""))


def test_it_is_notified_of_once_by_however_many_passes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(3):
        scene.absent.note(grace=0.0)
        scene.absent.note(grace=0.0)
        scene.absent.close(20.0)
    ((event, alert),) = scene.fake.sent
    assert (event, alert.severity, alert.triggers) == ("stall", "critical", ("server-ended",))
    assert alert.incident.triggers[0].why == "it does not run; watched last was pid 4711"


def test_a_server_that_may_be_starting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, now = Scene(tmp_path), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for now[0] in (100.0, 100.0 + absent.GRACE_SECONDS - 1):
        scene.absent.note()
        assert scene.fake.sent == []
    now[0] = 100.0 + absent.GRACE_SECONDS
    scene.absent.note()
    wait_until(lambda: scene.fake.sent, "it is notified of")
    scene.absent.close(20.0)


def test_a_server_that_another_agent_watches_is_its_own_affair(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    held = scene.state.lock(AGENT_LOCK)
    scene.absent.note(grace=0.0)
    scene.absent.close(20.0)
    held.release()
    assert scene.fake.sent == []

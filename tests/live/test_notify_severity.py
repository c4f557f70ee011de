# SPDX-License-Identifier: Apache-2.0
"""What a real Alertmanager makes of an alert that becomes critical."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stallscope.notify import destinations
from stallscope.notify.delivery import Delivery
from stallscope.notify.settings import AlertmanagerSettings
from tests.support.alertmanager import alertmanager
from tests.support.receivers import Receiver, receiver
from tests.support.servers import wait_until
from tests.unit.notifyscenes import alert

__all__: list[str] = []

pytestmark = [pytest.mark.needs("alertmanager")]


def sent(got: Receiver) -> list[tuple[str, str]]:
    """Return severity and status of what Alertmanager sent on."""
    return [
        (one["labels"]["severity"], one["status"])
        for posted in list(got.posted)
        for one in posted.json["alerts"]
    ]


def test_an_alert_that_becomes_critical_is_not_over(tmp_path: Path) -> None:
    """Its first severity fires until the end: nobody is notified that the stall is over."""
    with receiver() as got, alertmanager(tmp_path, got) as manager:
        settings = AlertmanagerSettings("am", url=manager.url, repeat=1, least_firing=0)
        delivery = Delivery(None, [destinations.make(settings)])
        delivery.open(msgspec.structs.replace(alert(), severity="warning"))
        wait_until(lambda: sent(got) == [("warning", "firing")], "the warning is sent on")
        delivery.update(alert())
        wait_until(lambda: ("critical", "firing") in sent(got), "and that it is critical")
        assert len(manager.alerts()) == 2
        delivery.update(alert(over=True))
        ends = {("warning", "resolved"), ("critical", "resolved")}
        wait_until(lambda: ends <= set(sent(got)), "both are over")
        assert sorted(sent(got)) == sorted([*ends, ("warning", "firing"), ("critical", "firing")])
        delivery.close(5.0)

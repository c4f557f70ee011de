# SPDX-License-Identifier: Apache-2.0
"""A real stall reaches a real Alertmanager once, also across kills of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.shots import unharmed
from tests.support.agents import BRIEF_TRIGGER, agent
from tests.support.alertmanager import Alertmanager, alertmanager
from tests.support.receivers import Receiver, receiver
from tests.support.servers import MariaDB, wait_until
from tests.support.stalls import metadata_lock_pileup

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "waits", "mariadb", "alertmanager")]

FILE = """\
[[destination]]
kind = "alertmanager"
url = "{url}"
repeat = 1
least-firing = 1

[[destination]]
kind = "webhook"
url = "{hook}"
"""


def sent(got: Receiver, status: str) -> list[dict[str, str]]:
    """Return the labels of what Alertmanager sent on."""
    return [
        one["labels"]
        for posted in list(got.posted)
        for one in posted.json["alerts"]
        if one["status"] == status
    ]


def blocker(manager: Alertmanager) -> str:
    found = [str(alert["annotations"].get("blocker", "")) for alert in manager.alerts()]
    return next(filter(None, found), "")


def events(hook: Receiver) -> list[str]:
    return [posted.json["event"] for posted in list(hook.posted)]


@pytest.mark.parametrize("kills", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_stall_is_one_alert(mariadb: MariaDB, tmp_path: Path, kills: int) -> None:
    triggers, dest = tmp_path / "triggers.toml", tmp_path / "store"
    with receiver() as got, receiver() as hook, alertmanager(tmp_path, got) as manager:
        triggers.write_text(BRIEF_TRIGGER + FILE.format(url=manager.url, hook=hook.url))
        options = ("--triggers", triggers)
        with metadata_lock_pileup(mariadb):
            for _ in range(kills):
                with agent(mariadb, dest, *options) as watch:
                    wait_until(lambda: hook.posted, "the webhook was called")
                    watch.kill()
            with unharmed(mariadb), agent(mariadb, dest, *options):
                wait_until(lambda: sent(got, "firing"), "Alertmanager has sent it on")
                # It becomes critical where the verdict is late, which is another one there.
                (name,) = {alert["labels"]["alertname"] for alert in manager.alerts()}
                assert name == "DatabaseStall"
                if not kills:  # at once, or where the verdict was late
                    wait_until(lambda: blocker(manager), "it has the verdict")
                    assert "user root" in blocker(manager)
        with agent(mariadb, dest, *options):
            wait_until(lambda: sent(got, "resolved"), "it is resolved")
            wait_until(lambda: "end" in events(hook), "the webhook got the end")
        (firing,) = {labels["stall"] for labels in sent(got, "firing")}
        (resolved,) = {labels["stall"] for labels in sent(got, "resolved")}
        assert firing == resolved
        # A kill between a delivery and its record repeats it, with its key.
        known = [event for event in events(hook) if event != "update"]
        assert list(dict.fromkeys(known)) == ["stall", "end"]
        assert kills or len(known) == 2
        assert {posted.json["key"] for posted in hook.posted} == {firing}

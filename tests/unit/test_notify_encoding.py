# SPDX-License-Identifier: Apache-2.0
"""Whatever is in the texts of an alert, it passes the outbox and reaches every destination."""

from __future__ import annotations

import email
import email.policy
import json
import os
import random
import sys
from pathlib import Path

import msgspec
import pytest

from stallscope.base.encoding import from_json, to_json
from stallscope.model.incident import Fired, Incident, TargetEntry, Verdict
from stallscope.notify import destinations
from stallscope.notify import settings as kinds
from stallscope.notify.alert import Alert, Event
from stallscope.notify.outbox import Entry, Outbox, fitting
from tests.support.chance import SEED
from tests.support.receivers import receiver
from tests.unit.smtpfake import smtp

__all__: list[str] = []

PIECES = (
    *("\udc80", "\ud83d-", "\U00010000", "\0", "\x1b[31m", "\r\n", "\n.\n", "\t", "\u202e"),
    *(
        "\u2028",
        "é",
        "ж",
        "漢",
        "😀",
        "`",
        "```",
        "<!channel>",
        "{{ 1 }}",
        '"',
        "\\",
        "%",
        "=?",
        ",",
    ),
    *("=?", ",", "a", "SELECT 1", "/var/lib", " ", "\x7f", "\x80", "x" * 300),
)
EVENTS: tuple[Event, ...] = ("stall", "update", "end")


def text(chance: random.Random) -> str:
    if chance.random() < 0.02:
        return (chance.choice(PIECES) * 50_000)[:50_000]
    return "".join(chance.choices(PIECES, k=chance.randrange(8)))


def strange(chance: random.Random) -> Alert:
    def maybe() -> str | None:
        return chance.choice((None, text(chance)))

    verdict = Verdict(
        maybe(),
        text(chance),
        chance.random(),
        chance.randrange(10**6),
        maybe(),
        maybe(),
        maybe(),
        chance.random(),
        maybe(),
        maybe(),
        tuple(text(chance) for _ in range(chance.randrange(4))),
    )
    incident = Incident(
        text(chance),
        chance.randrange(2**60),
        TargetEntry(1, text(chance), exe=maybe(), version=maybe(), host=maybe()),
        end_ns=chance.choice((None, 2**60)),
        verdict=chance.choice((None, verdict)),
        triggers=tuple(Fired(text(chance), text(chance), 1) for _ in range(chance.randrange(3))),
    )
    return Alert(
        text(chance) or "key",
        incident,
        text(chance),
        chance.choice(("warning", "critical")),
        over=chance.choice((True, False)),
        path=maybe(),
        link=maybe(),
        first=chance.choice((None, "warning")),
    )


def alerts(count: int) -> list[Alert]:
    chance = random.Random(SEED)
    return [strange(chance) for _ in range(count)]


def test_the_outbox_keeps_every_text(tmp_path: Path) -> None:
    made = {one.key: fitting(one)[0] for one in alerts(300)}
    outbox = Outbox(tmp_path / "outbox.sqlite")
    outbox.save([Entry(one, (one.incident.id,)) for one in made.values()], [])
    found, _ = outbox.load()
    assert {entry.alert.key: entry.alert for entry in found} == made
    outbox.save([], found)
    assert outbox.load()[0] == []
    outbox.close()


def test_json_is_json_to_everybody() -> None:
    for one in alerts(100):
        json.loads(to_json(one).decode("utf-8"))
        assert from_json(to_json(one, lossless=True), Alert) == one


def test_every_destination_on_the_web_gets_every_text(tmp_path: Path) -> None:
    template = tmp_path / "body"
    template.write_text('{"text": {{ title | tojson }}, "path": {{ path | tojson }}}')
    with receiver() as server:
        url = server.url
        made = [
            destinations.make(one)
            for one in (
                kinds.AlertmanagerSettings(url=url, user="ж", password="é"),
                kinds.PagerDutySettings(routing_key="k", url=url),
                kinds.OpsgenieSettings(api_key="k", url=url),
                kinds.SlackSettings(url=url),
                kinds.TeamsSettings(url=url),
                kinds.WebhookSettings(url=url, secret="s", headers={"X-Name": "ж"}),
                kinds.WebhookSettings(url=url, template=str(template)),
            )
        ]
        for number, one in enumerate(alerts(30)):
            for destination in made:
                destination.send(EVENTS[number % 3], one)
        assert len(server.posted) == 30 * len(made)
        for posted in server.posted:
            assert isinstance(posted.json, dict | list)


def test_mail_gets_every_text() -> None:
    with smtp() as server:
        made = destinations.make(
            kinds.MailSettings(to=["a@b"], host="127.0.0.1", port=server.server_address[1])
        )
        for number, one in enumerate(alerts(40)):
            made.send(EVENTS[number % 3], one)
        assert len(server.mails) == 40
        for mail in server.mails:
            found = email.message_from_bytes(mail, policy=email.policy.default)
            assert found["To"] == "a@b"
            assert found.get_content()


def test_a_command_gets_every_text_and_the_bytes_of_a_path(tmp_path: Path) -> None:
    file = tmp_path / "path"
    program = "import os, sys; open(sys.argv[1], 'wb').write(os.environb[b'STALLSCOPE_PATH'])"
    run = [sys.executable, "-c", program, str(file)]
    made = destinations.make(kinds.CommandDestination("c", run=run))
    for number, one in enumerate(alerts(12)):
        made.send(EVENTS[number % 3], one)
    path = os.fsdecode(b"/var/lib/\xff\xfe")
    made.send("stall", msgspec.structs.replace(alerts(1)[0], path=path))
    assert file.read_bytes() == b"/var/lib/\xff\xfe"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_apprise_gets_every_text() -> None:
    with receiver() as server:
        made = destinations.make(
            kinds.AppriseSettings("a", url=f"json://{server.url.removeprefix('http://')}")
        )
        for one in alerts(3):
            made.send("stall", one)
        assert len(server.posted) == 3

# SPDX-License-Identifier: Apache-2.0
"""Each kind of destination: what it sends, and what it makes of answers."""

from __future__ import annotations

import datetime
import email
import email.policy
import hashlib
import hmac
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.base import extras, package
from stallscope.base.errors import UsageError
from stallscope.base.sending import SendError
from stallscope.model.incident import Incident
from stallscope.notify import destinations
from stallscope.notify import settings as kinds
from stallscope.notify.alert import Alert
from stallscope.notify.destinations.alertmanager import labels
from tests.support.receivers import Fault, Receiver, receiver
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentlog import Messages
from tests.unit.notifyscenes import INCIDENT, alert
from tests.unit.smtpfake import Smtp, smtp

LINKED = msgspec.structs.replace(alert(), path="/var/lib/x", link="https://x/1")
SHOW = """\
import os, sys
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(f"{name}={value}" for name, value in os.environ.items()))
"""


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def both(settings: kinds.Destination, sent: Alert = LINKED) -> None:
    made = destinations.make(settings)
    made.send("stall", sent)
    made.send("end", msgspec.structs.replace(sent, over=True))


def test_alertmanager(server: Receiver) -> None:
    base = server.url.removesuffix("/hook")
    both(kinds.AlertmanagerSettings("am", url=base + "/", labels={"team": "dba"}))
    (first,), (last,) = (posted.json for posted in server.posted)
    assert [posted.path for posted in server.posted] == ["/api/v2/alerts"] * 2
    assert first["labels"] == last["labels"] == {**labels(LINKED, "critical"), "team": "dba"}
    assert first["labels"]["severity"] == "critical"
    assert first["generatorURL"] == "https://x/1"
    assert "startsAt" not in first
    assert "endsAt" not in first
    assert first["annotations"]["statement"] == "ALTER TABLE t ADD c INT"
    end = datetime.datetime.fromisoformat(last["endsAt"])
    assert end <= datetime.datetime.now(datetime.UTC)


def test_an_alert_that_became_critical_is_two_to_alertmanager(server: Receiver) -> None:
    """Its labels are its identity. The first one fires on: nobody is notified of an end."""
    made = destinations.make(kinds.AlertmanagerSettings("am", url=server.url))
    risen = msgspec.structs.replace(LINKED, first="warning")
    made.send("update", risen)
    made.send("end", risen)
    for posted, ends in zip(server.posted, (False, True), strict=True):
        assert [one["labels"]["severity"] for one in posted.json] == ["warning", "critical"]
        assert all(("endsAt" in one) == ends for one in posted.json)


def test_alertmanagers_clock_counts(server: Receiver) -> None:
    """The end is in Alertmanager's past, whatever this host's clock says."""
    made = destinations.make(kinds.AlertmanagerSettings("am", url=server.url))
    server.fault = Fault(date="Wed, 01 Jan 2020 00:00:00 GMT")
    made.send("stall", LINKED)
    made.send("end", LINKED)
    end = datetime.datetime.fromisoformat(server.posted[1].json[0]["endsAt"])
    found = end - datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    assert abs(found.total_seconds()) < 60


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"token": "t0"}, "Bearer t0"),
        ({"user": "u", "password": "p"}, "Basic dTpw"),
        ({}, None),
    ],
)
def test_alertmanager_is_logged_in_to(
    server: Receiver, settings: dict[str, str], header: str | None
) -> None:
    made = msgspec.convert(
        {"kind": "alertmanager", "url": server.url, **settings}, kinds.AlertmanagerSettings
    )
    both(made)
    assert server.posted[0].headers.get("Authorization") == header


def test_pagerduty(server: Receiver) -> None:
    both(kinds.PagerDutySettings("pd", routing_key="r", url=server.url))
    first, last = (posted.json for posted in server.posted)
    assert first["event_action"] == "trigger"
    assert last == {"routing_key": "r", "event_action": "resolve", "dedup_key": LINKED.key}
    assert first["dedup_key"] == LINKED.key
    assert first["payload"]["severity"] == "critical"
    assert first["payload"]["source"] == "db1"
    assert first["payload"]["custom_details"]["what to do"] == "KILL 88;"


def test_opsgenie(server: Receiver) -> None:
    both(kinds.OpsgenieSettings("og", api_key="k", url=server.url, teams=["dba"]))
    made = destinations.make(kinds.OpsgenieSettings("og", api_key="k", url=server.url))
    made.send("update", LINKED)
    first, last, risen = server.posted
    assert risen.path == "/hook/db1%2F1/priority?identifierType=alias"
    assert risen.json == {"priority": "P1"}
    assert first.headers["Authorization"] == "GenieKey k"
    assert first.json["alias"] == LINKED.key
    assert first.json["priority"] == "P1"
    assert first.json["responders"] == [{"name": "dba", "type": "team"}]
    assert last.path == "/hook/db1%2F1/close?identifierType=alias"


def test_slack_mentions_nobody(server: Receiver) -> None:
    verdict = msgspec.structs.replace(INCIDENT.verdict, statement="<!channel> & `x`")  # type: ignore[type-var]
    hostile = msgspec.structs.replace(
        LINKED, incident=msgspec.structs.replace(INCIDENT, verdict=verdict)
    )
    both(kinds.SlackSettings("s", url=server.url), hostile)
    text = server.posted[0].json["blocks"][1]["text"]["text"]
    assert "`&lt;!channel&gt; &amp; 'x'`" in text
    assert "<https://x/1|the incident>" in text
    assert "over" in server.posted[1].json["text"]


def test_teams(server: Receiver) -> None:
    both(kinds.TeamsSettings("t", url=server.url))
    (attachment,) = server.posted[0].json["attachments"]
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard"
    found = {fact["title"]: fact["value"] for fact in card["body"][1]["facts"]}
    assert found["what to do"] == "KILL 88;"
    assert card["actions"][0]["url"] == "https://x/1"
    (attachment,) = server.posted[1].json["attachments"]
    assert attachment["content"]["body"][0]["text"].startswith("over: ")


def test_a_webhook_gets_the_incident(server: Receiver) -> None:
    both(kinds.WebhookSettings("w", url=server.url, headers={"X-A": "1"}, secret="s"))
    first, last = server.posted
    assert first.json["event"] == "stall"
    assert last.json["event"] == "end"
    assert msgspec.convert(first.json["incident"], Incident) == INCIDENT
    assert first.headers["X-A"] == "1"
    assert first.headers["Idempotency-Key"] == f"{LINKED.key}#stall"
    made = hmac.new(b"s", first.body, hashlib.sha256).hexdigest()
    assert first.headers["X-Stallscope-Signature"] == f"sha256={made}"


def test_a_path_that_is_no_text_is_posted(server: Receiver) -> None:
    target = msgspec.structs.replace(INCIDENT.target, exe="/opt/\udc80/mariadbd")
    hostile = msgspec.structs.replace(INCIDENT, target=target)
    both(
        kinds.WebhookSettings("w", url=server.url),
        msgspec.structs.replace(LINKED, incident=hostile),
    )
    assert server.posted[0].json["incident"]["target"]["exe"] == "/opt/\\udc80/mariadbd"


def test_a_template_makes_the_body(server: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_text(
        '{"text": {{ title | tojson }}, "what": {{ facts.statement | default("-") | tojson }}}'
    )
    both(kinds.WebhookSettings("w", url=server.url, template=str(file)))
    assert server.posted[0].json == {
        "text": "mariadbd on db1: metadata-lock, 20 threads",
        "what": "ALTER TABLE t ADD c INT",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ title", r":1: unexpected end"),
        ("{% for %}", r":1: "),
        ("{{ title.__class__.__mro__ }}", " fails for an alert of which all is known: .*unsafe"),
        ("{{ facts.statement }}", " fails for an alert without .*no attribute 'statement'"),
        ("{{ path | length }}", " fails for an alert without verdict, trigger, statement and path"),
        ("{{ incident.verdict.title }}", " fails for an alert without verdict"),
        ("{{ title * 1000000 }}", " fails for .*more than 1 MiB"),
    ],
)
def test_a_template_that_is_wrong_is_an_error_at_the_start(
    tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "body"
    file.write_text(text)
    settings = kinds.WebhookSettings("w", url="http://x/", template=str(file))
    with pytest.raises(UsageError, match=f"destination w: template {file}{why}") as raised:
        destinations.make(settings)
    assert destinations.problem(settings) == str(raised.value)


def test_a_template_that_fails_later_loses_no_alert(server: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_text('{% if key == "db1/bad" %}{{ nothing }}{% endif %}"mine"')
    made = destinations.make(kinds.WebhookSettings("w", url=server.url, template=str(file)))
    with Messages() as log:
        for key in ("db1/bad", "db1/good", "db1/bad"):
            made.send("stall", alert(key))
    assert [posted.json for posted in server.posted][1] == "mine"
    assert server.posted[0].json["key"] == server.posted[2].json["key"] == "db1/bad"
    (said,) = log.messages
    assert "'nothing' is undefined; the built-in body is sent instead" in said


@pytest.mark.parametrize(
    ("fault", "refused", "after"),
    [
        (Fault(500), False, 0.0),
        (Fault(500, {"Retry-After": "17"}), False, 0.0),
        (Fault(503, {"Retry-After": "17"}), False, 17.0),
        (Fault(429, {"Retry-After": "3"}), False, 3.0),
        (Fault(404), True, 0.0),
        (Fault(302, {"Location": "http://127.0.0.1:1/"}), True, 0.0),
    ],
)
def test_answers(server: Receiver, fault: Fault, refused: bool, after: float) -> None:
    server.fault = fault
    made = destinations.make(kinds.WebhookSettings("w", url=server.url + "?token=hush"))
    with pytest.raises(SendError, match=f"answers {fault.status}") as raised:
        made.send("stall", LINKED)
    assert (raised.value.refused, raised.value.after) == (refused, after)
    assert not raised.value.unreachable
    assert "hush" not in str(raised.value)
    assert server.asked == 1


def test_a_destination_that_answers_late_is_given_up(server: Receiver) -> None:
    server.fault = Fault(seconds=PATIENCE)
    made = destinations.make(kinds.WebhookSettings("w", url=server.url, deadline=0.2))
    with pytest.raises(SendError, match=r"cannot be reached: .*timed out"):
        made.send("stall", LINKED)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://nowhere.invalid/"])
def test_a_destination_that_is_not_there(url: str) -> None:
    made = destinations.make(kinds.WebhookSettings("w", url=url))
    with pytest.raises(SendError, match="cannot be reached: ") as raised:
        made.send("stall", LINKED)
    assert "object at" not in str(raised.value)
    assert raised.value.unreachable


@pytest.fixture(name="smtp")
def smtp_server() -> Iterator[Smtp]:
    with smtp() as made:
        yield made


def mail(smtp: Smtp, **more: Any) -> kinds.MailSettings:
    return kinds.MailSettings(
        "m", to=["dba@example.org"], host="127.0.0.1", port=smtp.server_address[1], **more
    )


def test_mail(smtp: Smtp) -> None:
    both(mail(smtp))
    first, last = (
        email.message_from_bytes(text, policy=email.policy.default) for text in smtp.mails
    )
    assert first["Subject"] == "mariadbd on db1: metadata-lock, 20 threads"
    assert first["To"] == "dba@example.org"
    assert last["Subject"].startswith("over: ")
    assert last["In-Reply-To"] == first["Message-ID"]
    assert "what to do: KILL 88;" in first.get_content()
    destinations.make(mail(smtp)).send("update", LINKED)
    risen = email.message_from_bytes(smtp.mails[2], policy=email.policy.default)
    assert risen["Subject"].startswith("now critical: ")
    assert risen["In-Reply-To"] == first["Message-ID"] != risen["Message-ID"]


def test_mail_that_is_refused(smtp: Smtp) -> None:
    smtp.refuses = b"550 no such user\r\n"
    with pytest.raises(
        SendError, match=r"127.0.0.1 refuses dba@example.org: 550 no such user"
    ) as e:
        both(mail(smtp))
    assert e.value.refused
    smtp.refuses = b"450 try later\r\n"
    with pytest.raises(SendError, match="450 try later") as e:
        both(mail(smtp))
    assert not e.value.refused


def test_mail_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = destinations.make(kinds.MailSettings("m", to=["a@b"], host="127.0.0.1", port=port))
    with pytest.raises(SendError, match="Connection refused"):
        made.send("stall", LINKED)


def test_a_command_gets_variables_and_no_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PWD", "hush")
    file = tmp_path / "variables"
    run = [sys.executable, "-c", SHOW, str(file)]
    destinations.make(kinds.CommandDestination("c", run=run)).send("stall", LINKED)
    variables = dict(line.partition("=")[::2] for line in file.read_text().splitlines())
    assert variables["STALLSCOPE_EVENT"] == "stall"
    assert variables["STALLSCOPE_PATH"] == "/var/lib/x"
    assert variables["STALLSCOPE_VERDICT"] == "metadata-lock"
    assert variables["STALLSCOPE_CONFIDENCE"] == "0.89"
    assert variables["STALLSCOPE_WHY"] == "Threads_running 187 > 40; $(reboot)"
    assert variables["STALLSCOPE_SEVERITY"] == "critical"
    assert variables["STALLSCOPE_KEY"] == "db1/1#stall"
    assert "MYSQL_PWD" not in variables


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("#!/nonexistent", "cannot run .*: No such file or directory"),
        ("#!/bin/sh\necho no network >&2; exit 1", "it ended with 1: no network"),
    ],
)
def test_a_command_that_fails(tmp_path: Path, program: str, why: str) -> None:
    file = tmp_path / "program"
    file.write_text(program)
    settings = kinds.CommandDestination("c", run=[str(file)])
    with pytest.raises(UsageError, match=f"{file} is not a program that this user can execute"):
        destinations.make(settings)
    assert destinations.problem(settings)
    file.chmod(0o755)
    with pytest.raises(SendError, match=why) as raised:
        destinations.make(settings).send("stall", LINKED)
    assert not raised.value.unreachable


@pytest.mark.large
def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {file}.part; mv {file}.part {file}; wait"
    made = destinations.make(
        kinds.CommandDestination("c", run=["/bin/sh", "-c", script], deadline=5.0)
    )
    with pytest.raises(SendError, match="it took more than 5 s and was ended"):
        made.send("stall", LINKED)
    child = int(file.read_text())
    wait_until(lambda: not running(child), "its child has ended, too")


def test_a_command_may_leave_a_child_with_its_pipes(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"setsid sleep 60 & echo $! > {file}; echo why >&2; exit 3"
    made = destinations.make(kinds.CommandDestination("c", run=["/bin/sh", "-c", script]))
    with pytest.raises(SendError, match="it ended with 3: why"):
        made.send("stall", LINKED)
    os.kill(int(file.read_text()), signal.SIGKILL)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_apprise_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "apprise", "no_such_module")
    settings = kinds.AppriseSettings(url="json://h")
    assert "pip install 'stallscope[apprise]'" in (kinds.check(settings) or ("", ""))[1]
    monkeypatch.setattr(package, "FOLDER", Path("/usr/lib/stallscope/python/stallscope"))
    assert "apt-get install apprise" in (kinds.check(settings) or ("", ""))[1]
    assert extras.how_to_install("apprise", "top") == "pip install 'stallscope[apprise,top]'"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_apprise(server: Receiver) -> None:
    host = server.url.removeprefix("http://")
    both(kinds.AppriseSettings("a", url=f"json://{host}"))
    first, last = (posted.json for posted in server.posted)
    assert first["title"] == "mariadbd on db1: metadata-lock, 20 threads"
    assert "KILL 88;" in first["message"]
    assert (first["type"], last["type"]) == ("failure", "success")
    with pytest.raises(UsageError, match="knows no service"):
        destinations.make(kinds.AppriseSettings("a", url="nothing://x"))


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"kind": "slack"}, ("url", "it is missing: write url or url-file")),
        ({"kind": "slack", "url": "ftp://x"}, ("url", "is not a URL")),
        ({"kind": "slack", "url": "http://x", "url-file": "/x"}, ("url-file", "not both")),
        ({"kind": "command", "run": ["mail"]}, ("run", "'mail' is not an absolute path")),
        ({"kind": "mail", "to": ["nobody"]}, ("to", "'nobody' is no address of mail")),
        ({"kind": "mail", "to": ["a@b\r\nBcc: c@d"]}, ("to", "is no address of mail")),
        ({"kind": "webhook", "url": "http://x", "headers": {"a b": ""}}, ("headers", "'a b'")),
        ({"kind": "webhook", "url": "http://x", "headers": {"a": "\r\n"}}, ("headers", "'a'")),
        ({"kind": "pagerduty", "routing-key": "x", "name": "a b"}, ("name", "letters")),
        ({"kind": "pagerduty", "routing-key": "x"}, None),
        ({"kind": "alertmanager", "url": "http://[x"}, ("url", "Invalid IPv6")),
    ],
)
def test_settings_are_checked(value: dict[str, Any], wrong: tuple[str, str] | None) -> None:
    found = kinds.check(msgspec.convert(value, kinds.Destination))
    if wrong is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] == wrong[0]
        assert wrong[1] in found[1]


def test_secrets_are_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "slack.url"
    file.write_text("https://hooks.example.org/T0\n")
    settings = kinds.SlackSettings("s", url_file=str(file))
    assert kinds.secret(settings, "url") == "https://hooks.example.org/T0"
    by_systemd = kinds.SlackSettings("s", url_file="slack.url")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(UsageError, match=r"destination s: url-file = 'slack.url' is a credential"):
        kinds.secret(by_systemd, "url")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert kinds.secret(by_systemd, "url") == "https://hooks.example.org/T0"
    with pytest.raises(UsageError, match="url-file /nonexistent cannot be read: No such file"):
        kinds.secret(kinds.SlackSettings("s", url_file="/nonexistent"), "url")
    file.write_text("a\nb\n")
    with pytest.raises(UsageError, match="must hold one line"):
        kinds.secret(settings, "url")

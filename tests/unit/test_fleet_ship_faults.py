# SPDX-License-Identifier: Apache-2.0
"""Shipping over HTTP to a server that fails in every way: nothing is lost, and nothing hangs."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import msgspec
import pytest

from stallscope.fleet.address import parse
from stallscope.fleet.engines import clickhouse
from stallscope.fleet.engines.clickhouse import ClickHouseDestination
from stallscope.fleet.shipping.sender import Pace, Sender
from stallscope.fleet.shipping.spool import Spool, put_all
from tests.support.receivers import Fault, Receiver, receiver
from tests.support.servers.waiting import wait_until
from tests.unit.shipfakes import stacks

__all__: list[str] = []

SOON = Pace(heartbeat=3600, first=0, first_beat=3600, spread=0, retry=0.01, longest_retry=0.05)
PASSWORD = "hidden-5512"


def destination_of(sink: Receiver) -> ClickHouseDestination:
    """Return one that knows its engine already: the sink only takes insertions."""
    address = parse(f"clickhouse+http://agent:{PASSWORD}@127.0.0.1:{sink.port}/fleet")
    found = ClickHouseDestination(address)
    found._looked = True
    found._client._version = (18, 16)
    return found


def names(sink: Receiver) -> list[str]:
    found = []
    for posted in list(sink.posted):
        packed = posted.body.startswith(b"\x1f\x8b")
        body = gzip.decompress(posted.body) if packed else posted.body
        found += [
            msgspec.json.decode(line)["hash"] for line in body.splitlines() if line[:1] == b"{"
        ]
    return found


@pytest.mark.parametrize(
    "fault",
    [
        Fault(503),
        Fault(429, {"Retry-After": "0"}),
        Fault(500),
        Fault(302, {"Location": "http://127.0.0.1:1/"}),
        Fault(200, seconds=0.6),
        Fault(503, seconds=0.6),
    ],
    ids=lambda fault: f"{fault.status}-{fault.seconds:g}s",
)
def test_what_fails_for_a_time_arrives(
    tmp_path: Path,
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(clickhouse, "_SEND_SECONDS", 0.3)
    with receiver() as sink:
        sink.fault = fault
        sender = Sender(destination_of(sink), Spool(tmp_path / "one", 1 << 20), SOON)
        put_all(tmp_path, [sender.spool], stacks("a", "b"))
        sender.start()
        wait_until(lambda: sender.numbers().failures >= 2, "it fails")
        assert len(sender.spool) == 1
        assert sender.numbers().dropped == 0
        assert PASSWORD not in sender.numbers().why
        sink.fault = Fault()
        wait_until(lambda: len(sender.spool) == 0, "it is sent")
        assert set(names(sink)) == {"a", "b"}
        sender.close(1.0)
    assert PASSWORD not in caplog.text


def test_retry_after_is_honoured(tmp_path: Path) -> None:
    with receiver() as sink:
        sink.fault = Fault(503, {"Retry-After": "20"})
        sender = Sender(destination_of(sink), Spool(tmp_path / "one", 1 << 20), SOON)
        put_all(tmp_path, [sender.spool], stacks("a"))
        sender.start()
        wait_until(lambda: sender.numbers().failures, "it fails")
        assert 15 < sender._not_before - time.monotonic() < 25
        assert sink.asked == 1
        sender.retry()
        wait_until(lambda: sink.asked == 2, "a reload tries it again")
        sender.close(0.0)


def test_a_server_that_is_gone(tmp_path: Path) -> None:
    with receiver() as sink:
        destination = destination_of(sink)
        port = sink.port
    sender = Sender(destination, Spool(tmp_path / "one", 1 << 20), SOON)
    put_all(tmp_path, [sender.spool], stacks("a"))
    sender.start()
    wait_until(lambda: sender.numbers().failures >= 3, "it fails")
    assert PASSWORD not in sender.numbers().why
    with receiver(port) as again:
        wait_until(lambda: names(again) == ["a"], "it is back")
        wait_until(lambda: len(sender.spool) == 0, "the spool is empty")
        sender.close(1.0)


def test_an_end_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    with receiver() as sink:
        sink.fault = Fault(200, seconds=30)
        sender = Sender(destination_of(sink), Spool(tmp_path / "one", 1 << 20), SOON)
        put_all(tmp_path, [sender.spool], stacks("a"))
        sender.start()
        wait_until(lambda: sink.asked, "it hangs")
        begun = time.monotonic()
        sender.close(0.2)
        assert time.monotonic() - begun < 5
        assert len(Spool(tmp_path / "one", 1 << 20)) == 1

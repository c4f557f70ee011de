# SPDX-License-Identifier: Apache-2.0
"""A deadline is for the whole exchange: peers that send a byte at intervals, or nothing, are given
up in time, by each kind of destination.

No test reads a clock: a deadline that does not hold is a test that does not end.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from stallscope.base import deadline
from stallscope.base.sending import SendError
from stallscope.fleet.address import parse
from stallscope.fleet.engines.clickhouse import ClickHouseDestination
from stallscope.notify import destinations
from stallscope.notify import settings as kinds
from stallscope.notify.receiver import Receiver
from stallscope.notify.settings import Destination
from tests.support.receivers import receiver, serving
from tests.support.servers.waiting import PATIENCE
from tests.unit.notifyscenes import alert
from tests.unit.shipfakes import stacks

__all__: list[str] = []

SECONDS = 0.5
HEAD = b"HTTP/1.1 200 OK\r\n"
DRIPS: dict[str, bytes] = {
    "nothing": b"",
    "head": HEAD + b"X-Slow: ",
    "body": HEAD + b"Content-Length: 1000000\r\n\r\n",
    "greeting": b"220-",
}


class Drip(socketserver.ThreadingTCPServer):
    """Says a beginning, and then one byte after the other."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, beginning: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Drip)
        self.beginning = beginning
        self.asked = 0
        self.ending = threading.Event()

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Drip(socketserver.BaseRequestHandler):
    server: Drip

    def handle(self) -> None:
        self.server.asked += 1
        try:
            self.request.sendall(self.server.beginning)
            while not self.server.ending.wait(0.05):
                if self.server.beginning:
                    self.request.sendall(b"x")
        except OSError:
            pass  # it was given up


@contextmanager
def dripping(name: str) -> Iterator[Drip]:
    with Drip(DRIPS[name]) as server, serving(server, server.ending):
        yield server


def by_web(scheme: str) -> Callable[[str], Destination]:
    return lambda at: kinds.WebhookSettings("w", url=f"{scheme}://{at}/", deadline=SECONDS)


def by_mail(tls: str) -> Callable[[str], Destination]:
    def made(at: str) -> Destination:
        host, _, port = at.partition(":")
        given = {"kind": "mail", "to": ["a@b"], "host": host, "port": int(port), "tls": tls}
        return msgspec.convert({**given, "deadline": SECONDS}, kinds.MailSettings)

    return made


def by_apprise(at: str) -> Destination:
    return kinds.AppriseSettings("a", url=f"json://{at}/", deadline=SECONDS)


@pytest.mark.parametrize(
    ("settings", "drip"),
    [
        (by_web("http"), "nothing"),
        (by_web("http"), "head"),
        (by_web("http"), "body"),
        (by_web("https"), "nothing"),
        (by_mail("none"), "nothing"),
        (by_mail("none"), "greeting"),
        (by_mail("tls"), "nothing"),
        pytest.param(
            by_apprise, "head", marks=pytest.mark.filterwarnings("ignore::DeprecationWarning")
        ),
    ],
)
def test_a_slow_destination_is_given_up(settings: Callable[[str], Destination], drip: str) -> None:
    with dripping(drip) as server:
        made = destinations.make(settings(server.at))
        with pytest.raises(SendError, match=r"timed out after 0\.5 s") as raised:
            made.send("stall", alert())
    assert raised.value.unreachable


def test_a_slow_command_is_given_up() -> None:
    program = "import time\nwhile True: print('x', flush=True), time.sleep(0.05)"
    run = [sys.executable, "-c", program]
    made = destinations.make(kinds.CommandDestination("c", run=run, deadline=SECONDS))
    with pytest.raises(SendError, match=r"more than 0\.5 s"):
        made.send("stall", alert())


@pytest.mark.parametrize("drip", ["nothing", "head", "body"])
def test_a_slow_engine_is_given_up(drip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from stallscope.fleet.engines import clickhouseclient

    whole = clickhouseclient.Client.execute

    def quick(self: clickhouseclient.Client, *args: object, **more: object) -> bytes:
        return whole(self, *args, **{**more, "seconds": SECONDS})  # type: ignore[arg-type]

    monkeypatch.setattr(clickhouseclient.Client, "execute", quick)
    with dripping(drip) as server:
        made = ClickHouseDestination(parse(f"clickhouse+http://{server.at}/db"))
        with pytest.raises(SendError, match=r"timed out after 0\.5 s"):
            made.send(stacks("a"))


def test_a_name_service_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    found = socket.getaddrinfo

    def hangs(host: str, *args: Any, **more: Any) -> Any:
        if not more.get("flags"):
            gate.wait()
        return found(host, *args, **more)

    def made(seconds: float) -> Receiver:
        settings = kinds.WebhookSettings("w", url="http://nowhere.invalid/", deadline=seconds)
        return destinations.make(settings)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    try:
        while len(deadline._hanging) < deadline.MOST_HANGING:
            with pytest.raises(SendError, match=r"timed out|name service") as raised:
                made(0.05).send("stall", alert())
            assert raised.value.unreachable
        with pytest.raises(SendError, match="8 look-ups of names hang"):
            made(PATIENCE).send("stall", alert())
        with receiver() as server:  # an address needs no name service
            destinations.make(kinds.WebhookSettings("w", url=server.url)).send("stall", alert())
            assert server.posted
    finally:
        gate.set()
    for thread in deadline._hanging:
        thread.join(PATIENCE)
    with pytest.raises(SendError, match=r"cannot be reached: (?!8)"):  # there is room again
        made(PATIENCE).send("stall", alert())


def test_an_address_of_version_6_is_reached() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        at = f"http://[::1]:{server.getsockname()[1]}/"
        made = destinations.make(kinds.WebhookSettings("w", url=at, deadline=PATIENCE))
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(made.send, "stall", alert())
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                connection.sendall(HEAD + b"Content-Length: 0\r\n\r\n")
                sending.result(PATIENCE)


def test_an_exchange_in_time_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = threading.active_count()
        with deadline.Deadline(60.0):
            made = deadline.connect("127.0.0.1", server.getsockname()[1])
            other, _ = server.accept()
        with made, other:
            other.sendall(b"x")
            assert made.recv(1) == b"x", "it is not shut down"
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join(10)
        assert threading.active_count() <= before

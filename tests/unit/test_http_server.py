# SPDX-License-Identifier: Apache-2.0
"""The agent's HTTP against clients that are slow, large, many, or gone; and its addresses."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.agent.http import handler, server
from stallscope.agent.http.address import Address, parse
from stallscope.agent.http.pages import Answer, Pages
from stallscope.agent.http.server import MAX_CONNECTIONS, listening
from stallscope.base.errors import StallscopeError
from tests.support.servers.waiting import wait_until
from tests.unit.agentlog import Messages
from tests.unit.httpclient import connected, get, reply_to

ANY_PORT = parse("127.0.0.1:0")


class Fake(Pages):
    """Pages of which one waits, one fails, and one has no end."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[tuple[str, str, str]] = []
        self.ended = threading.Event()

    def get(self, path: str, query: str, accept: str) -> Answer:
        self.asked.append((path, query, accept))
        if path == "/waits":
            self.gate.wait()
        if path == "/fails":
            raise RuntimeError("no")
        if path == "/endless":
            return Answer(200, "text/plain", self._endless())
        return Answer(200, "text/plain", b"hello\n")

    def _endless(self) -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            self.ended.set()


@pytest.fixture
def pages() -> Iterator[Fake]:
    made = Fake()
    yield made
    made.gate.set()


@pytest.fixture
def address(pages: Fake) -> Iterator[Address]:
    with listening(ANY_PORT, pages) as found:
        yield found


def test_get_and_head(address: Address, pages: Fake) -> None:
    reply = get(address, "/a/b?c=d", {"Accept": "text/plain"})
    assert (reply.status, reply.body) == (200, b"hello\n")
    assert reply.headers["content-length"] == "6"
    assert reply.headers["connection"] == "close"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert pages.asked == [("/a/b", "c=d", "text/plain")]
    reply = get(address, "/", method="HEAD")
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "6")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "x"])
def test_other_methods_are_refused(method: str, address: Address, pages: Fake) -> None:
    reply = get(address, "/", method=method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    assert pages.asked == []


def test_a_page_that_fails_is_an_error_and_the_next_one_is_answered(address: Address) -> None:
    with Messages() as log:
        assert get(address, "/fails").status == 500
        assert get(address, "/").status == 200
    assert any("RuntimeError: no" in line for line in log.messages)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        b"GET /" + b"a" * 20000,
        b"GET / HTTP/1.1\r\nX: " + b"y" * 20000,
    ],
)
def test_a_large_head_is_refused(head: bytes, address: Address, pages: Fake) -> None:
    with connected(address) as end:
        end.sendall(head)
        assert end.recv(100).startswith(b"HTTP/1.1 431 ")
    assert pages.asked == []


def test_a_client_that_is_slow_is_cut_and_others_are_answered_meanwhile(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "READ_SECONDS", 1.0)
    begun = time.monotonic()
    with connected(address) as end:
        end.sendall(b"GET / HTTP/1.1\r\n")
        assert get(address, "/").status == 200
        end.settimeout(0.02)
        wait_until(lambda: _is_cut(end), "a byte at intervals starts no new time")
    assert time.monotonic() - begun >= 1.0


def _is_cut(end: socket.socket) -> bool:
    """Send one more byte; return whether the other side has closed."""
    try:
        end.sendall(b"X")
        return end.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_client_that_does_not_read_is_given_up(
    address: Address, pages: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "SEND_SECONDS", 0.2)
    with connected(address) as end:
        end.sendall(b"GET /endless HTTP/1.1\r\n\r\n")
        assert pages.ended.wait(30), "what makes the answer is ended too"


def test_a_client_that_goes_away_ends_what_makes_its_answer(address: Address, pages: Fake) -> None:
    with connected(address) as end:
        end.sendall(b"GET /endless HTTP/1.1\r\n\r\n")
        assert end.recv(1000)
    assert pages.ended.wait(30)


def test_more_connections_than_it_takes_are_closed(address: Address, pages: Fake) -> None:
    ends = [connected(address) for _ in range(MAX_CONNECTIONS)]
    try:
        for end in ends:
            end.sendall(b"GET /waits HTTP/1.1\r\n\r\n")
        wait_until(lambda: len(pages.asked) == MAX_CONNECTIONS, "all are being answered")
        with connected(address) as end:
            assert end.recv(1) == b""
        pages.gate.set()
        assert [reply_to(end).status for end in ends] == [200] * MAX_CONNECTIONS
    finally:
        for end in ends:
            end.close()
    wait_until(lambda: _answers(address), "it takes new ones")


def _answers(address: Address) -> bool:
    try:
        return get(address, "/").status == 200
    except (ConnectionError, OSError):
        return False


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:9876", 200),
        ("127.0.0.1:9876", 200),
        ("10.0.0.1", 200),
        ("[::1]:9876", 200),
        ("evil.example", 421),
        ("evil.example:9876", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1].evil.example", 421),
        ("evil", 421),
        ("a@localhost", 421),
    ],
)
def test_a_site_that_calls_itself_this_host_is_refused(
    host: str, status: int, address: Address
) -> None:
    with connected(address) as end:
        end.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert reply_to(end).status == status


def test_a_unix_socket(pages: Fake, tmp_path: Path) -> None:
    path = tmp_path / "http"
    address = Address(path=str(path))
    with listening(address, pages):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert get(address, "/", {"X": "y"}).status == 200
        with pytest.raises(StallscopeError, match="in use"), listening(address, pages):
            pass
        assert get(address, "/").status == 200
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as left:  # by an agent that was killed
        left.bind(str(path))
    with listening(address, pages):
        assert get(address, "/").status == 200
    path.write_text("mine")
    with pytest.raises(StallscopeError, match="in use"), listening(address, pages):
        pass
    assert path.read_text() == "mine"


def test_an_address_that_is_taken_is_one_line(address: Address, pages: Fake) -> None:
    refused = pytest.raises(StallscopeError, match=r"cannot listen on 127.0.0.1:\d+: .*in use")
    with refused, listening(address, pages):
        pass


def test_it_warns_where_other_hosts_can_connect(pages: Fake) -> None:
    with Messages() as log, listening(parse("0.0.0.0:0"), pages) as address:
        host = Address("127.0.0.1", address.port)
        with connected(host) as end:
            end.sendall(b"GET / HTTP/1.1\r\nHost: db1.example:9876\r\n\r\n")
            assert reply_to(end).status == 200
    assert any("without authentication" in line for line in log.messages)


def test_without_file_descriptors_it_waits(pages: Fake) -> None:
    """accept(2) fails at once, again and again."""
    calls: list[float] = []

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            calls.append(time.monotonic())
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Messages() as log, Listener() as listener:
        made = server._Server(listener, pages, checks_host=True)
        wait_until(lambda: len(calls) >= 3, "it tries again")
        made.close()
    assert calls[2] - calls[0] >= 2 * server._PAUSE * 0.9
    assert any("cannot accept" in line for line in log.messages)

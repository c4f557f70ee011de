# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that stands for a destination of notifications, and can fail in many ways."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["Fault", "Posted", "Receiver", "receiver", "serving"]


class Posted(msgspec.Struct, frozen=True):
    """One request that was answered with success."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float = 0.0
    """By the monotonic clock."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Fault(msgspec.Struct):
    """How it fails: with a status, slowly, or not at all."""

    status: int = 200
    headers: dict[str, str] = {}
    seconds: float = 0.0
    """It answers so late."""
    date: str | None = None
    """What it says that the time is."""


class Receiver(http.server.ThreadingHTTPServer):
    """``posted`` has what it took; ``asked`` counts all requests."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.fault = Fault()
        self.posted: list[Posted] = []
        self.asked = 0
        self.ending = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is a part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked += 1
        fault = self.server.fault
        if fault.seconds:
            self.server.ending.wait(fault.seconds)
        if fault.status < 300:
            self.server.posted.append(
                Posted(self.path, dict(self.headers.items()), body, time.monotonic())
            )
        self.send_response(fault.status)
        for name, value in fault.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_PUT = do_POST

    def date_time_string(self, timestamp: float | None = None) -> str:
        return self.server.fault.date or super().date_time_string(timestamp)

    def log_message(self, format: str, *args: object) -> None: ...


@contextlib.contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    """Run one until the block ends."""
    with Receiver(port) as server, serving(server, server.ending):
        yield server


@contextlib.contextmanager
def serving(server: socketserver.BaseServer, ending: threading.Event) -> Iterator[None]:
    """Serve in a thread until the block ends; ``ending`` is set for handlers that wait."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        ending.set()
        server.shutdown()
        thread.join()

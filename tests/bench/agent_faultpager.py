# SPDX-License-Identifier: Apache-2.0
"""The pager of a fault: a webhook that records each request, and can fail in the ways of one."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

__all__ = ["Pager", "Post", "pager"]

MOST_BYTES = 4 << 20
"""Of one request."""
DRIP_SECONDS = 0.2
"""Between two bytes of an answer that drips."""


class Post(msgspec.Struct, frozen=True):
    """One request."""

    at: float
    """When all of it was here, by the monotonic clock."""
    event: str
    key: str
    severity: str
    trigger: str
    """The first one of its incident."""
    title: str
    taken: bool
    """Whether it was answered with success."""
    refused: bool
    """Whether it was answered with an error."""


class Pager:
    """``posts`` has all requests. It can be taken down, and answer late or never."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.refuses: Callable[[str], bool] = lambda key: False
        """Whether requests with this key are answered with 500."""
        self.drips = threading.Event()
        """While set, an answer never ends: a byte at intervals. Those of then are cut off."""
        self._port = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    @property
    def taken(self) -> list[Post]:
        """Return what was answered with success."""
        return [post for post in list(self.posts) if post.taken]

    def up(self) -> None:
        """Listen, at the same port as before."""
        self._server = _Server(self, self._port)
        self._port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def down(self) -> None:
        """Listen no more: who connects is refused."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = None


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, owner: Pager, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.owner = owner

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is a part of the faults."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        owner = self.server.owner
        length = min(int(self.headers.get("Content-Length") or 0), MOST_BYTES)
        value = json.loads(self.rfile.read(length))
        at = time.monotonic()
        dripping = owner.drips.is_set()
        refused = owner.refuses(value["key"])
        if dripping:
            self._drip(owner)
        else:
            self.send_response(500 if refused else 200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
        owner.posts.append(_post(value, at, not (dripping or refused), refused))

    def _drip(self, owner: Pager) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while owner.drips.is_set():
                self.connection.sendall(b"y")
                time.sleep(DRIP_SECONDS)
        # A reset: the end of a stream would be taken for the end of the head.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def log_message(self, format: str, *args: object) -> None: ...


def _post(value: dict[str, Any], at: float, taken: bool, refused: bool) -> Post:
    triggers = value["incident"].get("triggers") or [{"trigger": "?"}]
    return Post(
        at,
        value["event"],
        value["key"],
        value["severity"],
        triggers[0]["trigger"],
        value["title"],
        taken,
        refused,
    )


@contextmanager
def pager() -> Iterator[Pager]:
    """Run one until the block ends."""
    made = Pager()
    made.up()
    try:
        yield made
    finally:
        made.drips.clear()
        made.down()

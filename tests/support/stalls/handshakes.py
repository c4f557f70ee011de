# SPDX-License-Identifier: Apache-2.0
"""Clients that connect, and go before they have logged in, as checks of a port alone do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import idle_connections
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until

__all__ = ["handshakes_aborted", "handshakes_that_end"]

PAUSE = 0.1
ABORTED = "SHOW GLOBAL STATUS LIKE 'Aborted_connects'"


@contextmanager
def handshakes_aborted(server: SqlServer) -> Iterator[None]:
    """Break off some handshakes a second."""
    ended = threading.Event()

    def knock() -> None:
        while not ended.wait(PAUSE):
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(str(server.socket))
                end.recv(1)

    client = threading.Thread(target=knock)
    client.start()
    try:
        wait_until(lambda: int(server.query(ABORTED)[0][1]) > 0, "the server counts one")
        yield
    finally:
        ended.set()
        client.join()


@contextmanager
def handshakes_that_end(server: SqlServer) -> Iterator[None]:
    """Let clients log in and stay."""
    with idle_connections(server, 5):
        yield

# SPDX-License-Identifier: Apache-2.0
"""One request: read within limits, answered within a deadline, and the connection is closed."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import re
import socket
import time
from collections.abc import Generator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from stallscope.agent.http.pages import Answer, Pages

__all__ = ["handle"]

_log = logging.getLogger(__name__)

READ_SECONDS = 5.0
"""For a whole request, however slowly its bytes come."""
SEND_SECONDS = 10.0
"""For an answer, and for each piece of one that is made while it is sent."""
MAX_HEAD = 16 << 10
_HOST = re.compile(r"(?:(\[[0-9a-fA-F:.]+\])|([A-Za-z0-9.-]*))(?::[0-9]*)?", re.ASCII)
_END = (b"\r\n\r\n", b"\n\n")


class _TooLargeError(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "stallscope"
    sys_version = ""

    def __init__(self, connection: socket.socket, pages: Pages, *, checks_host: bool) -> None:
        self._pages = pages
        self._checks_host = checks_host
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        self.rfile = io.BufferedReader(io.BytesIO(_head(self.request)))
        self.wfile = io.BytesIO()

    def handle(self) -> None:
        self.raw_requestline = self.rfile.readline()
        self.close_connection = True
        if not self.raw_requestline or not self.parse_request():
            self._flush()  # what parse_request says of the error
            return
        self.close_connection = True
        try:
            answer = self._answer()
        except Exception as error:
            _log.error("%s: internal error: %s: %s", self.path, type(error).__name__, error)
            answer = Answer(500, "text/plain", b"internal error\n")
        self._send(answer)

    def finish(self) -> None:
        """Everything was sent before."""

    def _answer(self) -> Answer:
        if self.command not in ("GET", "HEAD"):
            return Answer(405, "text/plain", b"GET and HEAD only\n", (("Allow", "GET, HEAD"),))
        if self._checks_host and not _is_local_host(self.headers.get("Host", "")):
            return Answer(421, "text/plain", b"the Host header names another host\n")
        path, _, query = self.path.partition("?")
        return self._pages.get(path, query, ",".join(self.headers.get_all("Accept") or ()))

    def _send(self, answer: Answer) -> None:
        body = answer.body
        pieces = iter((body,)) if isinstance(body, bytes) else body
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            for name, value in answer.headers:
                self.send_header(name, value)
            if isinstance(body, bytes):
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self._flush()
            if self.command != "HEAD":
                for piece in pieces:
                    self.request.sendall(piece)
        finally:
            if isinstance(pieces, Generator):
                pieces.close()

    def _flush(self) -> None:
        made = self.wfile
        assert isinstance(made, io.BytesIO)
        self.request.settimeout(SEND_SECONDS)
        self.request.sendall(made.getvalue())
        made.seek(0)
        made.truncate()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests come every few seconds, and hold whatever a client sends."""


def handle(connection: socket.socket, pages: Pages, *, checks_host: bool) -> None:
    """Answer one request. What goes wrong with a client is its own trouble.

    ``checks_host``: refuse host names other than ``localhost``, which a browser of this host may
    have been given for it (DNS rebinding).
    """
    try:
        _Handler(connection, pages, checks_host=checks_host)
    except _TooLargeError:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        with contextlib.suppress(OSError):
            connection.sendall(f"HTTP/1.1 {status.value} {status.phrase}\r\n\r\n".encode())
    except OSError:
        pass  # it was too slow, or has gone
    finally:
        _close(connection)


def _head(connection: socket.socket) -> bytes:
    """Read a request's head. Raises: OSError, also when its time is over."""
    end = time.monotonic() + READ_SECONDS
    head = b""
    while not any(mark in head for mark in _END):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(4096)
        if not piece:
            break
        head += piece
        if len(head) > MAX_HEAD:
            raise _TooLargeError
    return head


def _close(connection: socket.socket) -> None:
    """Close it after what was sent: bytes that nobody read would reset the connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.setblocking(False)
        connection.recv(MAX_HEAD)
    connection.close()


def _is_local_host(host: str) -> bool:
    """Return whether a Host header is ``localhost`` or an address, which no other site has."""
    match = _HOST.fullmatch(host)
    if match is None or not host or host.partition(":")[0] == "localhost":
        return match is not None
    try:
        ipaddress.ip_address((match[1] or match[2]).strip("[]"))
    except ValueError:
        return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""One request of HTTP, with a deadline, without redirects."""

from __future__ import annotations

import email.utils
import functools
import http.client
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import urllib3
import urllib3.connection

from stallscope.base import deadline, package
from stallscope.base.encoding import header, to_json
from stallscope.base.sending import SendError

__all__ = ["Answer", "exchange", "post", "post_json", "retry_after"]

MAX_ANSWER = 4096
_OK = range(200, 300)
_LATER = (408, 425, 429)
"""Answers of 4xx that ask for another attempt."""
_PIECE = 1 << 16
_BUSY = (429, 503)
"""Answers whose Retry-After is of the destination, not of this one request."""
_REASONS = http.client.responses
_UNREACHABLE = (
    TimeoutError,
    urllib3.exceptions.TimeoutError,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ProxyError,
    urllib3.exceptions.SSLError,
)


class Answer:
    """What a destination answered. ``body``: as much of it as was wanted; ``whole``: all of it."""

    def __init__(
        self, status: int, headers: Mapping[str, str], body: bytes, *, whole: bool = True
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.whole = whole
        self._at = time.time()

    @property
    def ahead(self) -> float | None:
        """Return by how many seconds the destination's clock is ahead of this host's; None: it
        does not say. It says whole seconds."""
        try:
            date = email.utils.parsedate_to_datetime(self.headers.get("Date") or "")
            return date.timestamp() - self._at
        except (ValueError, TypeError, OverflowError):
            return None

    @property
    def ahead_seconds(self) -> float:
        """Return the same; 0: unknown."""
        return self.ahead or 0.0


class _Watched(urllib3.connection.HTTPConnection):
    """A connection within the deadline of its thread."""

    def _new_conn(self) -> socket.socket:
        try:
            return deadline.connect(self._dns_host, self.port or self.default_port)
        except TimeoutError as error:
            raise urllib3.exceptions.ConnectTimeoutError(self, _why(error)) from error
        except OSError as error:
            raise urllib3.exceptions.NewConnectionError(self, _why(error)) from error

    def putrequest(self, *args: Any, **more: Any) -> None:
        """Watch the connection too where it is an earlier one, kept open."""
        if self.sock is not None:
            deadline.watch(self.sock)
        super().putrequest(*args, **more)


class _WatchedTls(_Watched, urllib3.connection.HTTPSConnection): ...


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Watched


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _WatchedTls


def post(
    url: str, body: bytes, headers: Mapping[str, str], seconds: float, *, method: str = "POST"
) -> Answer:
    """Post; https is verified with the system's certificates. Raises: SendError."""
    found = exchange(url, body, headers, seconds, method=method)
    if found.status in _OK:
        return found
    text = found.body.decode("utf-8", "backslashreplace")
    why = f"{_shown(url)} answers {found.status}: {text or _REASONS.get(found.status, 'nothing')}"
    refused = 300 <= found.status < 500 and found.status not in _LATER
    after = retry_after(found) if found.status in _BUSY else 0.0
    raise SendError(why, refused=refused, after=after)


def exchange(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    seconds: float,
    *,
    method: str = "POST",
    most: int = MAX_ANSWER,
    ca_file: str = "",
) -> Answer:
    """Post, and return the answer whatever its status is: ``most`` bytes of it.

    ``seconds``: for all of it, from the look-up of the name to the last byte. ``ca_file``:
    certificates to trust instead of the system's. Raises: SendError: there was no answer in time.
    """
    sent = {"User-Agent": f"stallscope/{package.version()}", **headers}
    try:
        with deadline.Deadline(seconds):
            answer = _pool(_proxy(url), ca_file).request(
                method,
                url,
                body=body,
                headers={name: header(value) for name, value in sent.items()},
                timeout=urllib3.Timeout(total=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                said, whole = _read(answer, most)
            finally:
                # Not back to the pool: what is left of the answer can be endless.
                answer.close()
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        reached = not isinstance(error, _UNREACHABLE)
        how = "gives no answer" if reached else "cannot be reached"
        raise SendError(f"{_shown(url)} {how}: {_why(error)}", unreachable=not reached) from error
    return Answer(answer.status, answer.headers, said, whole=whole)


def retry_after(answer: Answer) -> float:
    """Return the seconds for which a destination wants to be left alone; 0: it does not say."""
    return _seconds(answer.headers.get("Retry-After"))


def _read(answer: urllib3.BaseHTTPResponse, most: int) -> tuple[bytes, bool]:
    """Return the beginning of the body, and whether that is all."""
    # Before urllib3 2.1 there is only the one that waits until it has all that was asked for.
    read = getattr(answer, "read1", answer.read)
    pieces: list[bytes] = []
    size = 0
    while size <= most:
        piece = read(min(_PIECE, most + 1 - size))
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)[:most], False


def post_json(
    url: str,
    value: object,
    seconds: float,
    headers: Mapping[str, str] = {},
    *,
    method: str = "POST",
) -> Answer:
    """Post a value as JSON. Raises: SendError."""
    sent = {"Content-Type": "application/json", **headers}
    return post(url, to_json(value), sent, seconds, method=method)


def _proxy(url: str) -> str | None:
    """Return the proxy of this address, of the usual variables (https_proxy, no_proxy)."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


@functools.lru_cache(maxsize=8)
def _pool(proxy: str | None, ca_file: str) -> urllib3.PoolManager:
    trusted = ca_file or None  # None: the system's
    if proxy is None:
        found = urllib3.PoolManager(ca_certs=trusted)
    else:
        found = urllib3.ProxyManager(proxy, ca_certs=trusted)
    found.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return found


def _shown(url: str) -> str:
    """Return the host: the rest of an address is often its secret."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or '?'}" + (f":{parts.port}" if parts.port else "")


def _why(error: Exception) -> str:
    """Return the reason at the bottom of urllib3's errors."""
    while isinstance(
        below := getattr(error, "reason", None) or error.__cause__ or [*error.args, None][-2:][0],
        Exception,
    ):
        error = below
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0

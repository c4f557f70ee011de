# SPDX-License-Identifier: Apache-2.0
"""One request of HTTP, with a deadline, without redirects."""

from __future__ import annotations

import email.utils
import functools
import http.client
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping

import urllib3

from stallscope.base import package
from stallscope.notify.receiver import SendError

__all__ = ["Answer", "exchange", "post", "post_json", "retry_after"]

MAX_ANSWER = 4096
_OK = range(200, 300)
_LATER = (408, 425, 429)
"""Answers of 4xx that ask for another attempt."""
_PIECE = 1 << 16
_CONNECT = 10.0
"""Seconds, with TLS: what is there answers sooner."""
_REASONS = http.client.responses


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


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> Answer:
    """Post; https is verified with the system's certificates. Raises: SendError."""
    found = exchange(url, body, headers, seconds)
    if found.status in _OK:
        return found
    text = found.body.decode("utf-8", "backslashreplace")
    why = f"{_shown(url)} answers {found.status}: {text or _REASONS.get(found.status, 'nothing')}"
    refused = 300 <= found.status < 500 and found.status not in _LATER
    raise SendError(why, refused=refused, after=retry_after(found))


def exchange(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    seconds: float,
    *,
    most: int = MAX_ANSWER,
    ca_file: str = "",
) -> Answer:
    """Post, and return the answer whatever its status is: ``most`` bytes of it.

    ``ca_file``: certificates to trust instead of the system's. Raises: SendError: there was no
    answer in time.
    """
    ends = time.monotonic() + seconds
    sent = {"User-Agent": f"stallscope/{package.version()}", **headers}
    try:
        answer = _pool(_proxy(url), ca_file).request(
            "POST",
            url,
            body=body,
            headers=sent,
            timeout=urllib3.Timeout(connect=min(seconds, _CONNECT), total=seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            said, whole = _read(answer, most, ends)
        finally:
            # Not back to the pool: what is left of the answer can be endless.
            answer.close()
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise SendError(f"{_shown(url)} cannot be reached: {_why(error)}") from error
    return Answer(answer.status, answer.headers, said, whole=whole)


def retry_after(answer: Answer) -> float:
    """Return the seconds for which a destination wants to be left alone; 0: it does not say."""
    return _seconds(answer.headers.get("Retry-After"))


def _read(answer: urllib3.BaseHTTPResponse, most: int, ends: float) -> tuple[bytes, bool]:
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
        if time.monotonic() > ends:
            raise TimeoutError("its answer takes too long")
    return b"".join(pieces)[:most], False


def post_json(url: str, body: bytes, seconds: float, headers: Mapping[str, str] = {}) -> Answer:
    """Post JSON. Raises: SendError."""
    return post(url, body, {"Content-Type": "application/json", **headers}, seconds)


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
        return urllib3.PoolManager(ca_certs=trusted)
    return urllib3.ProxyManager(proxy, ca_certs=trusted)


def _shown(url: str) -> str:
    """Return the host: the rest of an address is often its secret."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or '?'}" + (f":{parts.port}" if parts.port else "")


def _why(error: Exception) -> str:
    """Return the reason at the bottom of urllib3's errors."""
    while isinstance(below := getattr(error, "reason", None) or error.__cause__, Exception):
        error = below
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0

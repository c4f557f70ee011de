# SPDX-License-Identifier: Apache-2.0
"""One request of HTTP, with a deadline, without redirects."""

from __future__ import annotations

import email.utils
import functools
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping

import urllib3

from stallscope.base import package
from stallscope.notify.receiver import SendError

__all__ = ["Answer", "post", "post_json"]

MAX_ANSWER = 4096
_OK = range(200, 300)
_LATER = (408, 425, 429)
"""Answers of 4xx that ask for another attempt."""


class Answer:
    """What a destination answered."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.body = body
        self._headers = headers

    @property
    def ahead_seconds(self) -> float:
        """Return how far the destination's clock is ahead of this host's; 0: unknown."""
        date = self._headers.get("Date")
        parsed = None if date is None else email.utils.parsedate_to_datetime(date)
        return 0.0 if parsed is None else parsed.timestamp() - time.time()


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> Answer:
    """Post; https is verified with the system's certificates. Raises: SendError."""
    timeout = urllib3.Timeout(total=seconds)
    sent = {"User-Agent": f"stallscope/{package.version()}", **headers}
    try:
        answer = _pool(_proxy(url)).request(
            "POST",
            url,
            body=body,
            headers=sent,
            timeout=timeout,
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            said = answer.read(MAX_ANSWER)
        finally:
            # Not back to the pool: what is left of the answer can be endless.
            answer.close()
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise SendError(f"{_shown(url)} cannot be reached: {_why(error)}") from error
    found = Answer(answer.status, answer.headers, said)
    if answer.status in _OK:
        return found
    text = said.decode("utf-8", "backslashreplace")
    why = f"{_shown(url)} answers {answer.status}: {text or answer.reason or 'nothing'}"
    refused = 300 <= answer.status < 500 and answer.status not in _LATER
    raise SendError(why, refused=refused, after=_seconds(answer.headers.get("Retry-After")))


def post_json(url: str, body: bytes, seconds: float, headers: Mapping[str, str] = {}) -> Answer:
    """Post JSON. Raises: SendError."""
    return post(url, body, {"Content-Type": "application/json", **headers}, seconds)


def _proxy(url: str) -> str | None:
    """Return the proxy of this address, of the usual variables (https_proxy, no_proxy)."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


@functools.lru_cache(maxsize=4)
def _pool(proxy: str | None) -> urllib3.PoolManager:
    return urllib3.PoolManager() if proxy is None else urllib3.ProxyManager(proxy)


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

# SPDX-License-Identifier: Apache-2.0
"""Post JSON to a URL, without following redirects."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from email.message import Message
from typing import IO, Any

__all__ = ["post"]

_MAX_ANSWER = 4096


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead anywhere, and would make a GET of the POST."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        raise urllib.error.HTTPError(req.full_url, code, "it redirects", headers, fp)


def post(url: str, data: bytes, seconds: float) -> str | None:
    """Post; return why it failed, or None. https is verified; no redirect is followed."""
    request = urllib.request.Request(  # noqa: S310  # the caller has checked the scheme
        url,
        data=data,
        method="POST",
        headers={"Content-Type": "application/json", "User-Agent": "stallscope"},
    )
    handlers: list[Any] = [_NoRedirect()]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=seconds) as answer:
            answer.read(_MAX_ANSWER)
    except urllib.error.HTTPError as error:
        return f"it answers {error.code} ({error.reason})"
    except (OSError, ValueError) as error:
        return f"cannot be reached: {getattr(error, 'reason', None) or error}"
    return None

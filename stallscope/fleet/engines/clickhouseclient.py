# SPDX-License-Identifier: Apache-2.0
"""Statements to ClickHouse over HTTP: to any node of those in an address."""

from __future__ import annotations

import gzip
import os
import random
import re
import sys
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stallscope.base.sending import SendError
from stallscope.base.text import one_line
from stallscope.fleet.address import Address
from stallscope.notify import http

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

__all__ = ["Client", "Failure"]

MAX_ANSWER = 64 << 20
_CODE = re.compile(r"Code: (\d{1,5})")
_WHY = re.compile(
    r"DB::Exception: (.*?)(?:, e\.what\(\)|\s*\(version |,? Stack trace|$)", re.DOTALL
)
_PACKED_FROM = 1024
"""Bytes: less is not made smaller."""
_ZSTD_SINCE = (20, 10)

ELSEWHERE = frozenset({202, 203, 210, 225, 242, 243, 279, 999})
"""Codes of conditions that another replica may not have: too many queries, no connection, no
ZooKeeper, read-only, no space."""


class Failure(Exception):
    """A statement was not executed. ``code``: ClickHouse's; 0: it is none of ClickHouse's.
    ``status``: of HTTP; 0: no node was reached. ``after``: seconds that it asks to wait."""

    def __init__(self, why: str, *, code: int = 0, status: int = 0, after: float = 0.0) -> None:
        super().__init__(one_line(why, 400))
        self.code = code
        self.status = status
        self.after = after


class Client:
    """Of one address. Not for several threads at once."""

    def __init__(self, address: Address, *, ca_file: str = "") -> None:
        self.address = address
        self.skew_ms: float | None = None
        """How far the clock of the node that answered last is ahead; to half a second."""
        self._ca_file = ca_file
        self._version: tuple[int, int] | None = None
        self._at = random.randrange(len(address.hosts))  # noqa: S311  # it spreads load

    @property
    def version(self) -> tuple[int, int]:
        """Return the server's version, asked once. Raises: Failure."""
        if self._version is None:
            said = self.execute("SELECT version()", database="").decode("utf-8", "replace")
            found = re.match(r"(\d{1,4})\.(\d{1,4})", said)
            if found is None:
                raise Failure(f"{self.address.shown} is no ClickHouse: {one_line(said, 80)!r}")
            self._version = (int(found[1]), int(found[2]))
        return self._version

    def execute(
        self,
        sql: str,
        data: bytes = b"",
        *,
        settings: Mapping[str, str | int] = {},
        database: str | None = None,
        seconds: float = 60.0,
        packed: bool = False,
    ) -> bytes:
        """Return the answer, 64 MiB at most. ``data``: the rows of an INSERT, as lines.

        ``database``: that of the address by default; empty: none. ``packed``: compress what is
        sent. A node that cannot be reached, or is not able to, is skipped. Raises: Failure.
        """
        wanted = self.address.database if database is None else database
        # A condition that the first lines of an answer do not have is in its status too.
        query: dict[str, str | int] = {"wait_end_of_query": 1, **settings}
        if wanted:
            query["database"] = wanted
        body = sql.encode() + b"\n" + data
        headers = {"X-ClickHouse-User": self.address.user or "default"}
        if self.address.password:
            headers["X-ClickHouse-Key"] = self.address.password
        if packed and len(body) >= _PACKED_FROM:
            headers["Content-Encoding"], body = self._packed(body)
        return self._anywhere("?" + urllib.parse.urlencode(query), body, headers, seconds)

    def _packed(self, body: bytes) -> tuple[str, bytes]:
        if self.version >= _ZSTD_SINCE:
            return "zstd", zstd.compress(body)
        return "gzip", gzip.compress(body, 6)

    def _anywhere(
        self, query: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> bytes:
        hosts = self.address.hosts
        failed: list[Failure] = []
        for step in range(len(hosts)):
            at = (self._at + step) % len(hosts)
            try:
                answer = self._of(hosts[at], query, body, headers, seconds)
            except Failure as error:
                failed.append(error)
                if error.status and error.code not in ELSEWHERE:
                    self._at = at
                    raise
                continue
            self._at = at
            return answer
        # A node that answers says more than one that does not.
        shown = next((one for one in failed if one.status), failed[0])
        if len(hosts) > 1:
            shown.args = (one_line(f"{shown}; none of the {len(hosts)} nodes is able to", 400),)
        raise shown

    def _of(
        self, host: str, query: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> bytes:
        if self._ca_file and not os.access(self._ca_file, os.R_OK):
            raise Failure(f"cannot read the certificates in {self._ca_file}")
        url = f"{self.address.scheme}://{host}/{query}"
        try:
            answer = http.exchange(
                url, body, headers, seconds, most=MAX_ANSWER, ca_file=self._ca_file
            )
        except SendError as error:
            raise Failure(str(error)) from error
        ahead = answer.ahead
        # The header has whole seconds.
        self.skew_ms = None if ahead is None else round((ahead + 0.5) * 1000, 1)
        where = f"{self.address.scheme}://{host}"
        if answer.status == 200:
            if not answer.whole:
                raise Failure(
                    f"{where}: the answer is larger than {MAX_ANSWER >> 20} MiB: ask for less",
                    status=200,
                )
            return answer.body
        raise _failure(where, answer)


def _failure(where: str, answer: http.Answer) -> Failure:
    text = answer.body[:8192].decode("utf-8", "backslashreplace")
    found = _CODE.search(text)
    named = answer.headers.get("X-ClickHouse-Exception-Code", "")
    code = int(named[:6]) if named.isascii() and named.isdigit() else int(found[1]) if found else 0
    why = _WHY.search(text)
    said = one_line((why[1] if why else text).strip() or "nothing", 250)
    if 300 <= answer.status < 400:
        said = "it sends elsewhere, which is not followed: give the address itself"
    elif not code:
        said = f"it answers {answer.status}, and not as ClickHouse does: {said}"
    return Failure(
        f"{where}: {said}" + (f" (code {code})" if code else ""),
        code=code,
        status=answer.status,
        after=http.retry_after(answer),
    )

# SPDX-License-Identifier: Apache-2.0
"""Lines that InnoDB prints of transactions and locks, in its status and in error logs."""

from __future__ import annotations

import re

__all__ = ["CONNECTION", "LOCK", "OS_THREAD", "PAGE", "TRANSACTION", "activity", "handle", "who"]

TRANSACTION = re.compile(
    r"(?:---)?TRANSACTION (\(?[0-9A-Fa-fx]+(?: \d+)?\)?|\S+),"
    r" (ACTIVE|not started|COMMITTED|PREPARED|ROLLING BACK)\b(?: \(PREPARED\))?"
    r"(?: (\d{1,10}) sec)?(.*)"
)
OS_THREAD = re.compile(r"OS thread (?:id|handle) (0x[0-9a-fA-F]{1,16}|\d{1,20})")
CONNECTION = re.compile(
    r"(?:MySQL|MariaDB) thread id (\d{1,18})(?:, OS thread handle (0x[0-9a-f]{1,16}|\d{1,20}))?"
    r", query id (\d{1,18})\s?(.*)"
)
LOCK = re.compile(
    r"(?P<what>RECORD LOCKS|TABLE LOCK) (?P<where>.{1,400}?)"
    r" trx id (?P<trx>\S+) lock[_ ]mode (?P<mode>\S+)(?P<more>.*)"
)
PAGE = re.compile(r"space id (\d+) page no (\d+) (?:n bits \d+ )?index (.+?) of table (.+)")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:.]+")


def handle(text: str | None) -> int:
    """Return the ``pthread_t`` as a number; 0 where there is none, or none that can be."""
    if not text:
        return 0
    value = int(text, 16) if text.startswith("0x") else int(text)
    return value if value < 2**63 else 0


def activity(text: str, tid: re.Match[str] | None) -> str | None:
    """Return the activity at the end of a transaction's first line."""
    text = text[tid.end() :] if tid else text
    return text.strip(" ,") or None


def who(text: str) -> tuple[str, str | None]:
    """Split ``[host] [address] user [state]``, of which the server leaves out what it has not."""
    words = text.split()
    if not words or words[0][0].isupper():
        return "", text.strip() or None
    start = 2 if len(words) > 1 and _ADDRESS.fullmatch(words[1]) else 1
    user = words[start] if len(words) > start else ""
    return user, " ".join(words[start + 1 :]) or None

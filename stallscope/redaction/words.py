# SPDX-License-Identifier: Apache-2.0
"""The words that a text may keep, and names in place of all others.

A text keeps what is known to be no secret, and nothing else: words of stallscope's own messages,
of SQL and of servers (words.txt), and numbers of at most seven digits. What a name stands for is
the same throughout one ``Names``.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
from pathlib import Path

__all__ = ["FILE", "Names", "known_words"]

FILE = Path(__file__).with_name("words.txt")

_PUBLIC = frozenset(("information_schema", "mysql", "performance_schema", "root", "sys", "system"))
"""Names that every server has."""
_ADDRESS = re.compile(r"(?<![\w.:])[0-9A-Fa-f.:]{2,}+")
_MAX_ADDRESS = 60
_TOKEN = re.compile(r"0x[0-9a-f]{1,16}+(?!\w)|\d++(?:\.\d++)?+(?!\w)|\w(?:\w|\$)*+")
_PART = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?|0x[0-9a-f]+")
_MAX_DIGITS = 7
_LEAST_NAME = 2


@functools.cache
def known_words() -> frozenset[str]:
    """Return the words that a text may keep, in lower case."""
    return frozenset(FILE.read_text(encoding="ascii").split())


class Names:
    """Names in place of secrets: ``user-1``, ``schema-2``, by the order in which they came."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        """How many different names of each kind were replaced."""

    def of(self, kind: str, secret: str) -> str:
        """Return the name that stands for a secret of a kind; public names stay."""
        key = secret.casefold()
        if not secret or key in _PUBLIC:
            return secret
        found = self._known.get(key)
        if found is None:
            number = self.counts[kind] = self.counts.get(kind, 0) + 1
            found = self._known[key] = f"{kind}-{number}"
        return found

    def text(self, text: str) -> str:
        """Return a text with names in place of addresses, of names that are known by now, of
        numbers that are long, and of all words that are not known to be none."""
        return self._scrubbed(_ADDRESS.sub(self._address, text), names_first=True)

    def code(self, text: str) -> str:
        """Return a word of stallscope, of a server or of a kernel, a kind or a variable; in it a
        known word stays, even where it is a user's or a table's name too."""
        return self._scrubbed(_ADDRESS.sub(self._address, text), names_first=False)

    def _address(self, match: re.Match[str]) -> str:
        found = match.group()
        for candidate in (found.rstrip(".:"), found.rstrip(".:").rpartition(":")[0], found):
            # Behind an address can be a port.
            with contextlib.suppress(ValueError):
                if len(candidate) <= _MAX_ADDRESS and ("." in candidate or ":" in candidate):
                    ipaddress.ip_address(candidate)
                    return self.of("ip", candidate) + found[len(candidate) :]
        return found

    def _scrubbed(self, text: str, *, names_first: bool) -> str:
        words = known_words()

        def of(match: re.Match[str]) -> str:
            token = match.group()
            if _NUMBER.fullmatch(token):
                whole = token.partition(".")[0]
                few = len(whole) <= _MAX_DIGITS and len(token) - len(whole) <= _MAX_DIGITS + 1
                return token if few or token.startswith("0x") else "N"
            key = token.casefold()
            if names_first and len(token) >= _LEAST_NAME and key in self._known:
                return self._known[key]
            if (
                len(token) < _LEAST_NAME
                or key in words
                or _is_own(match)
                or _is_known(token, words)
            ):
                return token
            return self.of("name", token)

        return _TOKEN.sub(of, text)


_OWN = re.compile(
    r"(?<!\w)(?:user|schema|table|host|ip|path|file|program|statement|digest|object|name|boot)"
    r"-\d{1,9}+(?![\w$])"
)


def _is_own(match: re.Match[str]) -> bool:
    """Return whether a word is of a name that was put here before."""
    text, start = match.string, match.start()
    return any(
        one.start() <= start < one.end()
        for one in _OWN.finditer(text, max(0, start - 12), match.end() + 12)
    )


def _is_known(token: str, words: frozenset[str]) -> bool:
    """Return whether all parts of a word such as Innodb_row_lock_waits are known, digits aside."""
    parts = _PART.findall(token)
    digits = sum(char.isdigit() for char in token)
    return bool(parts) and digits <= 3 and all(part.casefold() in words for part in parts)

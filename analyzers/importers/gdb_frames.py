# SPDX-License-Identifier: Apache-2.0
"""One frame of gdb's text: its lines, its parts, and the lock that its arguments show."""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import MAX_LINE
from stallscope.model.capture import LockKind

__all__ = [
    "LOCKERS",
    "LOCK_ARGUMENT",
    "Open",
    "RawFrame",
    "is_bare",
    "is_continuation",
    "is_frame",
    "parse",
]

MAX_NAME = 2000
"""Characters of a name without arguments after it."""
MAX_LOGICAL = 262_144
"""Characters of one frame over all its lines."""

RawFrame = tuple[str | None, int | None, str | None, str | None]
"""Symbol, pc, source, library."""

_BODY = re.compile(
    r"0x[0-9a-f]{1,16} in \S|<signal handler called>|<function called from gdb>"
    r"|(?!0x)[^\s(][^\n]{0,2000}? \("
)
_PC = re.compile(r"0x([0-9a-f]{1,16}) in ")
_SIMPLE = re.compile(r"([\w:~$.@*]+) \(")
_SOURCE = re.compile(r"\)\s+at (\S[^()]{0,4096}:\d+)\s*$")
_FROM = re.compile(r"\)?\s+from (\S[^()\"]{0,4096}?)\s*$")
_FILE_LINE = re.compile(r".+\.\w{1,4}:\d+")
_CONTINUATION = re.compile(r"\s*(?:at|from) (?!=)\S")
_NAME = re.compile(r"[A-Za-z_~$(<][^\n\"#=;]*[\w>)\]*=~]")
_PLACE = re.compile(r"\s*\S[^()]{0,4096}:\d+\s*")
_PATH = re.compile(r"\s*[^\s()\"][^()\"]{0,4096}")
_WITH_BLANK = ("virtual thunk to ", "non-virtual thunk to ")
_DRGN = re.compile(r"\([^()\s=]+:\d+(?::\d+)?\)\s*$")

# Functions that get the lock they wait for as an argument which gdb prints.
LOCKERS = {
    "pthread_mutex_lock": LockKind.MUTEX,
    "native_mutex_lock": LockKind.MUTEX,
    "my_mutex_lock": LockKind.MUTEX,
    "inline_mysql_mutex_lock": LockKind.MUTEX,
    "psi_mutex_lock": LockKind.MUTEX,
    "safe_mutex_lock": LockKind.MUTEX,
    "os_fast_mutex_lock_func": LockKind.MUTEX,
    "pthread_rwlock_rdlock": LockKind.RWLOCK,
    "pthread_rwlock_wrlock": LockKind.RWLOCK,
    "pthread_rwlock_rdlock_full64": LockKind.RWLOCK,
    "pthread_rwlock_wrlock_full64": LockKind.RWLOCK,
    "mutex_spin_wait": LockKind.INTERNAL,
    "rw_lock_s_lock_spin": LockKind.INTERNAL,
    "rw_lock_x_lock_func": LockKind.INTERNAL,
    "rw_lock_sx_lock_func": LockKind.INTERNAL,
    "TTASEventMutex::wait": LockKind.INTERNAL,
    "PolicyMutex::enter": LockKind.INTERNAL,
    "ssux_lock_impl::rd_wait": LockKind.INTERNAL,
    "ssux_lock_impl::wr_wait": LockKind.INTERNAL,
    "srw_mutex_impl::wait_and_lock": LockKind.INTERNAL,
}
LOCK_ARGUMENT = re.compile(
    r"\b(?:mutex|mp|that|rwlock|lock|this|fast_mutex)="
    r"(?:\w{1,64}@entry=)?0x([0-9a-f]{1,16})(?: <([^>]{1,512})>)?"
)


class Open:
    """A frame whose lines are still coming; knows whether its argument list is closed."""

    def __init__(self, text: str) -> None:
        self.parts = [text]
        self.size = len(text)
        self.depth = 0
        self.quoted = False
        self._scan(text)

    def _scan(self, text: str) -> None:
        if "(" not in text and ")" not in text and '"' not in text and not self.quoted:
            return
        if text.endswith(" ()") and not self.quoted and text.count("(") == 1:
            return
        at = 0
        while at < len(text):
            char = text[at]
            if self.quoted:
                if char == "\\":
                    at += 1
                elif char == '"':
                    self.quoted = False
            elif char == '"':
                self.quoted = True
            elif char == "'" and text.find("'", at + 1, at + 8) > 0:
                at = text.find("'", at + 2, at + 8) if text[at + 1] == "\\" else at + 2
                if at < 0:
                    break
            elif char == "(":
                self.depth += 1
            elif char == ")":
                self.depth -= 1
            at += 1

    def add(self, line: str) -> bool:
        """Take the line if it continues the frame."""
        stripped = line[:MAX_LINE].strip()
        if not stripped:
            return False
        if self.depth <= 0 and not (_CONTINUATION.match(line) and len(self.parts) < 64):
            return False
        if self.size > MAX_LOGICAL:
            return True
        self.parts.append(stripped)
        self.size += len(stripped)
        self._scan(stripped)
        return True


def is_continuation(line: str) -> bool:
    """Return whether a line can end a frame whose arguments are closed: ``at FILE`` or ``from``."""
    return _CONTINUATION.match(line) is not None


def is_frame(body: str) -> bool:
    """Return whether what follows a number is a frame of gdb."""
    if _BODY.match(body) is None or _DRGN.search(body):
        return False
    if body.startswith(("0x", "<")):
        return True
    name = body[: _name_end(body, 0)]
    return " " not in name or "<" in name or "(" in name or "operator" in name


def is_bare(body: str) -> bool:
    """Return whether it can be a frame without arguments: one name, with or without its place."""
    name = _bare(body.rstrip()[:MAX_LINE])[0]
    if len(name) > MAX_NAME or "+0x" in name or _NAME.fullmatch(name) is None:
        return name == "??"
    return _blank(name) < 0


def _bare(text: str) -> tuple[str, str | None, str | None]:
    """Return name, source and library of a frame that ends without ``()``."""
    name, at, place = text.rpartition(" at ")
    if at and _PLACE.fullmatch(place):
        return name.rstrip(), place.strip(), None
    name, at, place = text.rpartition(" from ")
    if at and _PATH.fullmatch(place):
        return name.rstrip(), None, place.strip()
    return text, None, None


def _blank(name: str) -> int:
    """Return where a name has a blank that is not of its template, arguments or operator."""
    depth = 0
    for at, char in enumerate(name):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == " " and depth <= 0 and not _goes_on(name, at):
            return at
    return -1


def _goes_on(name: str, at: int) -> bool:
    return name.endswith("operator", 0, at) or name.startswith(_WITH_BLANK)


def parse(text: str) -> tuple[RawFrame, int]:
    """Return the frame, and where its name ends."""
    pc = None
    start = 0
    address = _PC.match(text)
    if address:
        pc = int(address.group(1), 16)
        start = address.end()
    simple = _SIMPLE.match(text, start)
    end = simple.end(1) if simple else _name_end(text, start)
    symbol: str | None = text[start:end].strip(" *")
    rest = text[end:]
    source = _SOURCE.search(rest) if " at " in rest else None
    library = _FROM.search(rest) if source is None and " from " in rest else None
    where = library.group(1) if library else None
    place = source.group(1) if source else None
    if where is None and place is None and end == len(text) and symbol:
        symbol, place, where = _bare(symbol)  # no (): quickstack -a, and dumps that people cut
    if symbol in ("??", ""):
        symbol = None
    if where is not None and _FILE_LINE.fullmatch(where):
        return (symbol, pc, where, None), end  # so quickstack names a source
    return (symbol, pc, place, where), end


def _name_end(text: str, start: int) -> int:
    """Return where the name ends: before the blank and parenthesis of gdb's arguments."""
    angle = paren = 0
    at = start
    length = min(len(text), MAX_LINE)
    while at < length:
        char = text[at]
        if char == "o" and text.startswith("operator", at):
            at += 8
            while at < length and text[at] in "<>-=!+*/%^&|~,[]":
                at += 1
            if text.startswith("()", at):
                at += 2
            continue
        if char == "<":
            angle += 1
        elif char == ">":
            angle = max(0, angle - 1)
        elif char == "(":
            if angle == 0 and paren == 0 and at > start and text[at - 1] == " ":
                return at - 1
            paren += 1
        elif char == ")":
            paren = max(0, paren - 1)
        at += 1
    return length

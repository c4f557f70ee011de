# SPDX-License-Identifier: Apache-2.0
"""gdb's text to stacks, fast: equal frames are parsed once, all that differs is their arguments.

Nothing here knows where one dump ends and the next begins, so pieces of a file can be scanned
apart, in several processes, and put together in order by `gdb`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from stallscope.analyzers.importers.dump import MAX_FRAMES, MAX_LINE, squeeze
from stallscope.analyzers.names import bare, normalize
from stallscope.model.capture import LockKind

__all__ = ["DumpStart", "RawFrame", "RawThread", "Scan", "boundary", "scan"]

MAX_LOGICAL = 262_144
"""Characters of one frame over all its lines."""
MAX_KEPT = 400
"""Characters of a line that is remembered whole."""
_MAX_CACHE = 100_000

RawFrame = tuple[str | None, int | None, str | None, str | None]
"""Symbol, pc, source, library."""


class RawThread(msgspec.Struct, array_like=True, gc=False):
    """A thread; ``stack`` is an index into the scan's stacks."""

    tid: int
    stack: int
    name: str = ""
    number: int = 0
    """gdb's own."""
    count: int = 1
    unwind: str = "complete"
    lock: tuple[int, str, str | None] | None = None
    """Address, kind, symbol."""
    cut: bool = False
    continues: bool = False
    """The piece began inside a thread: this is the rest of the one before."""


class DumpStart(msgspec.Struct, array_like=True):
    """A line that occurs only at the start of a dump."""

    pid: int = 0
    exe: str | None = None


class Scan(msgspec.Struct):
    """The stacks of a piece of text. ``rest``: the lines that are not gdb's."""

    frames: list[RawFrame]
    stacks: list[tuple[int, ...]]
    items: list[RawThread | DumpStart]
    rest: str
    quickstack: bool = False


_FRAME = re.compile(r"\s*#(\d{1,8})\s+(\S.*)")
_BODY = re.compile(
    r"0x[0-9a-f]{1,16} in \S|<signal handler called>|<function called from gdb>"
    r"|(?!0x)[^\s(][^\n]{0,2000}? \("
)
_HEADER = re.compile(
    r"\s*(?:\[Switching to )?[Tt]hread (?:\d{1,9}(?:\.\d{1,9})?|0x[0-9a-f]{1,16}) \("
)
_USUAL = re.compile(
    r'Thread (\d{1,9}) \(Thread 0x[0-9a-f]{1,16} \(LWP (\d{1,9})\)(?: "([^"]{0,64})")?\):'
)
_LWP = re.compile(r"LWP (\d{1,9})|process (\d{1,9})|Thread \d{1,9}\.(\d{1,9})")
_NUMBER = re.compile(r"[Tt]hread (\d{1,9})\b")
_NAME = re.compile(r'"([^"]{0,64})"')
_PAGER = re.compile(r"\s*---?Type <(?:return|RET)>[^-]*---?")
_DUMP_START = re.compile(
    r"TS \d+\.\d+|Attaching to (?:program: \S+, )?process \d+|\[Thread debugging using"
)
_COUNTED = re.compile(r"\s*(\d{1,7}) threads? with (?:the following )?stack trace")
_ATTACHED = re.compile(r"Attaching to (?:program: (\S+?), )?process (\d{1,9})")
# What becomes of gdb's text in issues, wikis and blogs.
_ESCAPED = re.compile(r"^([ \t]*)\\#(?=\d)", re.M)
_JOINED = re.compile(
    r"(?<=\S) #(\d{1,4}) {1,2}(?=0x[0-9a-f]{1,16} in \S|<signal handler|[\w:~]{1,200} \()"
)
_BARE = re.compile(r"^([ \t]{0,8})(\d{1,4})(?=[ \t]{1,3}0x[0-9a-f]{6,16} in \S)", re.M)
_BARE_FIRST = re.compile(
    r"^([ \t]{0,8})0(?=  ?[\w:~@.]{2,200} \([^\n]{0,300}\n[ \t]{0,8}#1 )", re.M
)
_PC = re.compile(r"0x([0-9a-f]{1,16}) in ")
_SIMPLE = re.compile(r"([\w:~$.@*]+) \(")
_SOURCE = re.compile(r"\)\s+at (\S[^()]{0,4096}:\d+)\s*$")
_FROM = re.compile(r"\)?\s+from (\S[^()\"]{0,4096}?)\s*$")
_FILE_LINE = re.compile(r".+\.\w{1,4}:\d+")
_CONTINUATION = re.compile(r"\s*(?:at|from) (?!=)\S")
_DRGN = re.compile(r"\([^()\s=]+:\d+(?::\d+)?\)\s*$")
_OF_FULL = ("No locals.", "No symbol table info available.", "Backtrace stopped", "warning: ")
_STOPPED = (
    ("Cannot access memory", "no-memory"),
    ("Backtrace stopped", "bad-cfi"),
    ("(More stack frames follow", "limit"),
    ("Backtrace limit", "limit"),
)

# Functions that get the lock they wait for as an argument which gdb prints.
_LOCKERS = {
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
_LOCK_ARGUMENT = re.compile(
    r"\b(?:mutex|mp|that|rwlock|lock|this|fast_mutex)="
    r"(?:\w{1,64}@entry=)?0x([0-9a-f]{1,16})(?: <([^>]{1,512})>)?"
)
_LOCK_DEPTH = 10
"""A lock's function is among the innermost frames, or the thread does not wait for it."""


def boundary(data: bytes, start: int, end: int) -> int:
    """Return where to cut with the least harm: before a thread, else a line; ``start``: nowhere."""
    at = data.rfind(b"\nThread ", start, end)
    if at <= start:
        at = data.rfind(b"\n#0 ", start, end)
        if at > start:
            at = data.rfind(b"\n", start, at)  # its header
    if at <= start:
        at = data.rfind(b"\n", start, end)
    return at + 1 if at >= start else start


def scan(text: str) -> Scan:
    """Read all stacks that gdb printed into the text."""
    text = _repaired(text)
    if "#" not in text:
        return Scan([], [], [], text)
    return _Scanner(text).scan()


def _repaired(text: str) -> str:
    """Undo what markup did to frames: escaped, lost or joined ``#``."""
    if "\\#" in text:
        text = _ESCAPED.sub(r"\1#", text)
    if " #1 0x" in text or " #1  0x" in text:
        text = _JOINED.sub(r"\n#\1  ", text)
    if "#0 " not in text:
        if " in " in text and (text.startswith("0 ") or "0  0x" in text):
            text = _BARE.sub(r"\1#\2", text)
        if "#1 " in text:
            text = _BARE_FIRST.sub(r"\1#0", text)
    return text


class _Open:
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


class _Scanner:
    """Lines to threads. A frame is known by its text up to its arguments and after them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.frames: list[RawFrame] = []
        self.frame_index: dict[RawFrame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.items: list[RawThread | DumpStart] = []
        self.rest: list[str] = []
        self.by_text: dict[tuple[str, str], int] = {}
        self.by_line: dict[str, int] = {}
        self.by_pc: dict[str, tuple[str, str, int]] = {}
        self.kinds: dict[int, LockKind | None] = {}
        self.quickstack = False
        self.stack: list[int] = []
        self.in_thread = False
        self.reset()

    def reset(self) -> None:
        self.stack = []
        self.lock: tuple[int, str, str | None] | None = None
        self.tid = 0
        self.name = ""
        self.number = 0
        self.count = 1
        self.unwind = "complete"
        self.in_thread = False
        self.continues = False
        self.switched = False

    def scan(self) -> Scan:
        # Long: it runs for each of millions of lines, with its state in local variables and no call
        # on the usual paths.
        by_pc = self.by_pc.get
        by_text = self.by_text.get
        opened: _Open | None = None
        key = ("", "")
        inside = False  # among lines of gdb
        last = ""  # the digit of the last frame that has one
        stack = self.stack
        by_line = self.by_line.get
        for line in self.lines():
            frame: int | None = by_line(line)
            if frame is not None:
                inside = True
                if opened is not None:
                    self.close(opened, key)
                    opened = None
                if frame >= 0:
                    stack.append(frame)
                else:
                    stack.append(~frame)
                    self.find_lock(~frame, line)
                continue
            first = line[:1]
            if first == "#":
                if opened is not None:
                    self.close(opened, key)
                    opened = None
                if line[3:4].isdecimal() and line[2] != " ":  # frame 100 and on: align it
                    if len(stack) > MAX_FRAMES:
                        continue
                    line = "#99 " + line[line.find(" ") + 1 :].lstrip()
                if line[2:3] == " ":
                    digit = line[1]
                    if digit <= last or (digit == "0" and stack):
                        self.restart()
                        stack = self.stack
                    last = digit
                entry = by_pc(line[4:22])
                if entry is not None and line.startswith(entry[0], 22) and line.endswith(entry[1]):
                    frame = entry[2]
                else:
                    start = line.find(" (", 4)
                    key = (line[4:start], line[line.rfind(")") :])
                    frame = by_text(key)
                    if frame is None:
                        frame = by_text((line[4:], ""))
                if frame is not None:
                    inside = True
                    # Above, a line represents its frame, and #0 and #1 begin a stack.
                    if line[1] > "1" and len(line) < MAX_KEPT:
                        self.keep(line, frame)
                    if frame >= 0:
                        stack.append(frame)
                    else:
                        stack.append(~frame)
                        self.find_lock(~frame, line)
                    continue
                match = _FRAME.match(line)
                if match is None or not self.is_frame(match.group(2)):
                    self.rest.append(line)
                    inside = False
                    continue
                inside = True
                if not stack and not self.in_thread and match.group(1) not in ("0", "00"):
                    self.continues = not self.items
                self.quickstack = self.quickstack or match.group(1) == "00"
                opened = _Open(match.group(2)[:MAX_LINE])
            elif first == "T" and ((usual := _USUAL.fullmatch(line)) or self.header(line)):
                if opened is not None:
                    self.close(opened, key)
                    opened = None
                self.new_thread(line, usual)
                stack = self.stack
                inside, last = True, ""
            elif not line:
                if opened is not None:
                    self.close(opened, key)
                    opened = None
                self.rest.append(line)
            elif opened is not None and opened.add(line):
                pass
            else:
                if opened is not None:
                    self.close(opened, key)
                    opened = None
                if first in " \t[t+(":
                    match = _FRAME.match(line) if "#" in line else None
                    if match is not None and self.is_frame(match.group(2)):
                        if match.group(1) in ("0", "00") and stack:
                            self.restart()
                        last = match.group(1) if len(match.group(1)) == 1 else ":"
                        opened = _Open(match.group(2)[:MAX_LINE])
                        key = ("", "")
                        inside = True
                        stack = self.stack
                        continue
                    if "hread " in line and self.header(line):
                        self.new_thread(line)
                        stack = self.stack
                        inside, last = True, ""
                        continue
                inside = self.other(line, inside)
                stack = self.stack
        if opened is not None:
            self.close(opened, key)
        self.end_thread()
        return Scan(
            self.frames, list(self.stacks), self.items, "\n".join(self.rest), self.quickstack
        )

    def lines(self) -> Iterator[str]:
        text = self.text
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        if "Type <" in text:
            text = _PAGER.sub("", text)
        head = text[: 1 << 18]
        if "\n    at " in head or ",\n    " in head:  # wrapped at the width of a terminal
            text = text.replace(",\n    ", ", ").replace("\n    at ", " at ")
        return iter(text.split("\n"))

    def is_frame(self, body: str) -> bool:
        if _BODY.match(body) is None or _DRGN.search(body):
            return False
        if body.startswith(("0x", "<")):
            return True
        name = body[: _name_end(body, 0)]
        return " " not in name or "<" in name or "(" in name or "operator" in name

    def header(self, line: str) -> bool:
        return _HEADER.match(line) is not None and (
            "LWP" in line or line.rstrip()[-1:] in (":", ")")
        )

    def new_thread(self, line: str, usual: re.Match[str] | None = None) -> None:
        self.end_thread()
        self.in_thread = True
        if usual is not None:
            number, tid, name = usual.groups("")
            self.number, self.tid, self.name = int(number), int(tid), name
            return
        self.switched = line.lstrip().startswith("[Switching")
        lwp = _LWP.search(line)
        self.tid = int(next(group for group in lwp.groups() if group)) if lwp else 0
        own = _NUMBER.search(line)
        self.number = int(own.group(1)) if own else 0
        quoted = _NAME.search(line)
        self.name = quoted.group(1) if quoted else ""

    def other(self, line: str, inside: bool) -> bool:
        """Take a line that is no frame and no header; say whether gdb goes on after it."""
        if _DUMP_START.match(line):
            self.end_thread()
            attached = _ATTACHED.match(line)
            self.items.append(
                DumpStart(int(attached.group(2)), attached.group(1)) if attached else DumpStart()
            )
            return True
        counted = _COUNTED.match(line)
        if counted:  # bt-aggregate's heads of equal stacks
            self.end_thread()
            self.count = max(1, int(counted.group(1)))
            self.in_thread = True
            return True
        if self.stack:
            for text, unwind in _STOPPED:
                if text in line:
                    self.unwind = unwind
                    return True
        if inside and (line[0] in " \t" or line.startswith(_OF_FULL)):
            return True  # locals of `bt full`
        self.rest.append(line)
        return False

    def close(self, opened: _Open, key: tuple[str, str]) -> None:
        """Parse a frame that is complete, and remember it by its text without the arguments."""
        text = squeeze(" ".join(opened.parts))
        raw, start = _parse(text)
        index = self.frame_index.get(raw)
        if index is None:
            index = self.frame_index[raw] = len(self.frames)
            self.frames.append(raw)
            self.kinds[index] = _LOCKERS.get(bare(normalize(raw[0]))) if raw[0] else None
        self.stack.append(index)
        locks = self.kinds[index] is not None
        if locks:
            self.find_lock(index, text[start:])
        if len(opened.parts) == 1 and not opened.depth and key[1]:
            self.remember(raw, key, text, ~index if locks else index)

    def remember(self, raw: RawFrame, key: tuple[str, str], text: str, value: int) -> None:
        """Keep what distinguishes this frame from all others: its whole name, and pc or source."""
        if len(self.by_text) >= _MAX_CACHE:
            self.by_text.clear()
            self.by_pc.clear()
        if not key[0].endswith(raw[0] or "??"):
            self.by_text[text, ""] = value  # a name with blanks and parentheses in it
        elif raw[1] is not None or raw[2] is not None:
            self.by_text[key] = value
            if key[0].startswith("0x") and key[0][18:19] == " ":
                self.by_pc[key[0][:18]] = (key[0][18:] + " (", key[1], value)

    def keep(self, line: str, value: int) -> None:
        """Remember a line as a whole: many threads have it."""
        if len(self.by_line) >= _MAX_CACHE:
            self.by_line.clear()
        self.by_line[line] = value

    def find_lock(self, frame: int, text: str) -> None:
        kind = self.kinds[frame]
        if self.lock is not None or kind is None or len(self.stack) > _LOCK_DEPTH:
            return
        match = _LOCK_ARGUMENT.search(text[:MAX_LINE])
        if match is not None and (address := int(match.group(1), 16)):
            self.lock = (address, kind.value, match.group(2))

    def restart(self) -> None:
        """End the stack; but one frame after `[Switching to thread` is of the `bt` to come."""
        if self.switched and len(self.stack) == 1:
            self.stack = []
            self.switched = False
        else:
            self.end_thread()

    def end_thread(self) -> None:
        stack = self.stack[:MAX_FRAMES]
        cut = len(self.stack) > MAX_FRAMES
        while stack and self.frames[stack[-1]][0] is None and not self.frames[stack[-1]][1]:
            stack.pop()
        if stack or self.in_thread:
            key = tuple(stack)
            index = self.stacks.setdefault(key, len(self.stacks))
            self.items.append(
                RawThread(
                    self.tid,
                    index,
                    self.name,
                    self.number,
                    self.count,
                    "limit" if cut else self.unwind,
                    self.lock,
                    cut,
                    self.continues,
                )
            )
        self.reset()


def _parse(text: str) -> tuple[RawFrame, int]:
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
    if library is None and source is None and end == len(text) and symbol and " from " in symbol:
        symbol, _, path = symbol.rpartition(" from ")  # quickstack -a has no empty ()
        library = _FROM.match(f" from {path}")
    if symbol in ("??", ""):
        symbol = None
    where = library.group(1) if library else None
    if where is not None and _FILE_LINE.fullmatch(where):
        return (symbol, pc, where, None), end  # so quickstack names a source
    return (symbol, pc, source.group(1) if source else None, where), end


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

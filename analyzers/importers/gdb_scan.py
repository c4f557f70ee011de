# SPDX-License-Identifier: Apache-2.0
"""gdb's text to stacks, fast: equal threads and frames are read once. Mostly, all that differs is
their arguments, so texts are compared without the values of these.

Nothing here knows where one dump ends and the next begins, so pieces of a file can be scanned
apart, in several processes, and put together in order by `gdb`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence

import msgspec

from stallscope.analyzers.importers.dump import MAX_FRAMES, MAX_LINE, squeeze
from stallscope.analyzers.importers.gdb_frames import (
    LOCK_ARGUMENT,
    LOCKERS,
    Open,
    RawFrame,
    is_bare,
    is_continuation,
    is_frame,
    parse,
)
from stallscope.analyzers.names import bare, normalize
from stallscope.model.capture import LockKind

__all__ = ["DumpStart", "RawFrame", "RawThread", "Scan", "boundary", "scan"]

MAX_KEPT = 2000
"""Characters of a line that is remembered."""
_MAX_CACHE = 100_000
_LOCAL = -1 << 40
"""In place of a frame: a line of `bt full` about a variable."""


class RawThread(msgspec.Struct, array_like=True, tag=0, gc=False):
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
    first: int = 0
    """The number of its first frame, where it continues one."""


class DumpStart(msgspec.Struct, array_like=True, tag=1):
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

    def __reduce__(self) -> tuple[Callable[[bytes], Scan], tuple[bytes]]:
        """Go between processes ten times as fast as pickle's own way."""
        return _decode, (msgspec.msgpack.encode(self),)


def _decode(data: bytes) -> Scan:
    return msgspec.msgpack.decode(data, type=Scan)


_FRAME = re.compile(r"\s*#(\d{1,8})\s+(\S.*)")
_HEADER = re.compile(
    r"\s*(?:\[Switching to )?[Tt]hread (?:\d{1,9}(?:\.\d{1,9})?|0x[0-9a-f]{1,16}) \("
)
_USUAL = re.compile(
    r"(\d{1,9}) \((?:Thread (?:0x)?[0-9a-f]{1,20} \()?LWP (\d{1,9})\)?"
    r'(?: "([^"\n]{0,64})")?\):(?:\n|\Z)'
)
"""The head of a thread without its first word."""
_VALUE = re.compile(r'=[ .,{}\-0-9a-fx]+(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*")?')
_NUMBERED = tuple(f"#{number} " for number in range(MAX_FRAMES + 1))
_FRAME_NUMBER = re.compile(r"\s*#(\d{1,8})")
_TWO_FRAMES = re.compile(r"^[ \t]{0,8}#0[ \t]+[^\s#][^\n]*\n[ \t]{0,8}#1[ \t]", re.M)
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
_OF_FULL = ("No locals.", "No symbol table info available.", "Backtrace stopped", "warning: ")
_STOPPED = (
    ("Cannot access memory", "no-memory"),
    ("Backtrace stopped", "bad-cfi"),
    ("(More stack frames follow", "limit"),
    ("Backtrace limit", "limit"),
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
    if "#0 " in text:
        try:
            return _Scanner(_unwrapped(text), whole=False).scan()
        except _DamagedError:
            pass
    text = _repaired(text)
    if "#" not in text:
        return Scan([], [], [], text)
    text = text.replace("\r\n", "\n")
    return _Scanner(_unwrapped(_PAGER.sub("", text) if "Type <" in text else text)).scan()


class _DamagedError(Exception):
    """The text must be repaired as a whole before it is read."""


def _unwrapped(text: str) -> str:
    """Join the lines of frames that were wrapped at the width of a terminal."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    head = text[: 1 << 18]
    if "\n    at " in head or ",\n    " in head:
        text = text.replace(",\n    ", ", ").replace("\n    at ", " at ")
    return text


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


class _Same(msgspec.Struct, frozen=True, gc=False):
    """What a thread's text says, whatever its head and the values of its arguments are."""

    stack: int
    unwind: str
    lockers: tuple[tuple[int, str], ...]
    """Lines that can show the lock, and its kind."""
    rest: tuple[str, ...]


class _Scanner:
    """Text to threads. ``whole``: nothing in it needs repair any more."""

    def __init__(self, text: str, *, whole: bool = True) -> None:
        self.text = text
        self.whole = whole
        self.frames: list[RawFrame] = []
        self.frame_index: dict[RawFrame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.items: list[RawThread | DumpStart] = []
        self.rest: list[str] = []
        self.by_body: dict[str, _Same] = {}
        self.by_text: dict[tuple[str, str], int] = {}
        self.by_line: dict[str, int] = {}
        self.kinds: dict[int, LockKind | None] = {}
        self.quickstack = False
        self.in_thread = False
        self.opened: Open | None = None
        self.key = ("", "")
        self.inside = False  # among lines of gdb
        self.last = ""  # the digit of the last frame that has one
        self.reset()

    def reset(self) -> None:
        self.stack: list[int] = []
        self.heads: list[str] = []  # the first lines of the frames
        self.lock: tuple[int, str, str | None] | None = None
        self.tid = 0
        self.name = ""
        self.number = 0
        self.count = 1
        self.unwind = "complete"
        self.torn = False
        self.in_thread = False
        self.continues = False
        self.switched = False

    def scan(self) -> Scan:
        blocks = self.text.split("\nThread ")
        if blocks[0].startswith("Thread "):
            blocks[0] = blocks[0][len("Thread ") :]
        else:
            self.read(blocks.pop(0))
        heads = [_USUAL.match(block) for block in blocks]
        same = self.by_body.get
        # After a usual thread, what is not the head of the next can be a part of it.
        for block, head, ends in zip(blocks, heads, [*heads[1:], True], strict=bool(blocks)):
            if head is None:
                self.read(f"Thread {block}")
                if ends:
                    self.close()
                    self.end_thread()
                continue
            if not ends:
                self.begin(head)
                self.read(block[head.end() :])
                continue
            body = block[head.end() :]
            known = same(body)
            if known is None:
                key = _VALUE.sub("=", body)
                known = same(key)
                if known is None:
                    self.learn(head, body, key)
                    continue
            number, tid, name = head.groups("")
            self.items.append(
                RawThread(
                    int(tid),
                    known.stack,
                    name,
                    int(number),
                    1,
                    known.unwind,
                    _lock(body, known.lockers) if known.lockers else None,
                )
            )
            self.rest += known.rest
        self.close()
        self.end_thread()
        return Scan(
            self.frames, list(self.stacks), self.items, "\n".join(self.rest), self.quickstack
        )

    def begin(self, head: re.Match[str]) -> None:
        """Begin a thread with a usual head."""
        self.close()
        self.end_thread()
        self.in_thread = True
        number, tid, name = head.groups("")
        self.number, self.tid, self.name = int(number), int(tid), name
        self.inside, self.last = True, ""

    def learn(self, head: re.Match[str], body: str, key: str) -> None:
        """Read a whole thread; remember it where it is one stack and nothing else."""
        items, rest = len(self.items), len(self.rest)
        self.begin(head)
        self.check(body)
        lines, keys = body.split("\n"), key.split("\n")
        blank = not lines[-1]
        if blank:
            lines.pop()
            keys.pop()
        if not self.simple(lines, keys):
            self.lines(lines, keys)
        if blank:
            self.lines([""], [""])
        self.close()
        stack = self.stack
        self.end_thread()
        if len(self.items) != items + 1 or len(self.by_body) >= _MAX_CACHE:
            return
        item = self.items[-1]
        if not isinstance(item, RawThread) or item.cut:
            return
        lockers = []
        for place, frame in enumerate(stack[:_LOCK_DEPTH]):
            kind = self.kinds[frame]
            if kind is not None:
                if not lines[place : place + 1] or not all(
                    map(str.startswith, lines[: place + 1], _NUMBERED)
                ):
                    return
                lockers.append((place, kind.value))
        same = _Same(item.stack, item.unwind, tuple(lockers), tuple(self.rest[rest:]))
        self.by_body[key] = self.by_body[body] = same

    def simple(self, lines: Sequence[str], keys: Sequence[str]) -> bool:
        """Take the lines of a thread where each is a frame that is known, in order."""
        frames = [*map(self.by_line.get, keys)]
        if (
            None in frames
            or _LOCAL in frames
            or len(frames) > MAX_FRAMES
            or not all(map(str.startswith, lines, _NUMBERED))
        ):
            return False
        for place, frame in enumerate(frames):
            assert frame is not None
            self.stack.append(frame if frame >= 0 else ~frame)
            if frame < 0:
                self.find_lock(~frame, lines[place])
        self.heads = [*lines]
        return True

    def read(self, text: str) -> None:
        """Read lines that need not be of gdb, nor of one thread."""
        self.check(text)
        self.lines(text.split("\n"), _VALUE.sub("=", text).split("\n"))

    def check(self, text: str) -> None:
        """Raise: _DamagedError where markup or a pager went through the text."""
        if not self.whole and (
            "Type <" in text or " #1 0x" in text or " #1  0x" in text or "\\#" in text
        ):
            raise _DamagedError

    def lines(self, lines: Sequence[str], keys: Sequence[str]) -> None:
        """Read lines; the keys are the same without the values of arguments."""
        # Long: it runs for each line that differs, with its state in local variables and few calls
        # on the usual paths.
        by_text = self.by_text.get
        opened, text_key, inside, last = self.opened, self.key, self.inside, self.last
        stack, heads = self.stack, self.heads
        for line, key, frame in zip(lines, keys, map(self.by_line.get, keys), strict=True):
            if frame is not None and (frame != _LOCAL or (inside and opened is None)):
                if frame == _LOCAL:
                    continue
                inside = True
                if opened is not None:
                    self.opened, self.key = opened, text_key
                    self.close()
                    opened = None
                if line[2] == " ":
                    digit = line[1]
                    if digit < last or (digit == "0" and stack):
                        self.restart()
                        stack, heads = self.stack, self.heads
                    last = digit
                heads.append(line)
                if frame >= 0:
                    stack.append(frame)
                else:
                    stack.append(~frame)
                    self.find_lock(~frame, line)
                continue
            first = line[:1]
            if first == "#":
                if opened is not None:
                    self.opened, self.key = opened, text_key
                    self.close()
                    opened = None
                head = line
                if line[3:4].isdecimal() and line[2] != " ":  # frame 100 and on: align it
                    if len(stack) > MAX_FRAMES:
                        continue
                    line = "#99 " + line[line.find(" ") + 1 :].lstrip()
                if line[2:3] == " ":
                    digit = line[1]
                    if digit < last or (digit == "0" and stack):
                        self.restart()
                        stack, heads = self.stack, self.heads
                    last = digit
                    if line[3:4] != " ":
                        line = f"{line[:2]}  {line[3:]}"
                start = line.find(" (", 4)
                text_key = (line[4:start], line[line.rfind(")") :])
                frame = by_text(text_key)
                if frame is None:
                    frame = by_text((line[4:], ""))
                if frame is not None:
                    inside = True
                    if len(key) < MAX_KEPT:
                        self.keep(key, frame)
                    heads.append(head)
                    if frame >= 0:
                        stack.append(frame)
                    else:
                        stack.append(~frame)
                        self.find_lock(~frame, line)
                    continue
                match = _FRAME.match(line)
                if match is None or not self.is_frame(match, inside):
                    self.rest.append(head)
                    self.torn = self.torn or (match is not None and inside)
                    inside = False
                    continue
                inside = True
                if not stack and not self.in_thread and match.group(1) not in ("0", "00"):
                    self.continues = not self.items
                self.quickstack = self.quickstack or match.group(1) == "00"
                opened = Open(match.group(2)[:MAX_LINE])
                heads.append(head)
            elif first == "T" and self.header(line):
                self.opened, self.key = opened, text_key
                self.close()
                opened = None
                self.new_thread(line)
                stack, heads = self.stack, self.heads
                inside, last = True, ""
            elif not line:
                if opened is not None:
                    self.opened, self.key = opened, text_key
                    self.close()
                    opened = None
                self.rest.append(line)
            elif opened is not None and opened.add(line):
                pass
            else:
                if opened is not None:
                    self.opened, self.key = opened, text_key
                    self.close()
                    opened = None
                if first in " \t[t+(":
                    match = _FRAME.match(line) if "#" in line else None
                    if match is not None and self.is_frame(match, inside):
                        if match.group(1) in ("0", "00") and stack:
                            self.restart()
                        last = match.group(1) if len(match.group(1)) == 1 else ":"
                        opened = Open(match.group(2)[:MAX_LINE])
                        text_key = ("", "")
                        inside = True
                        stack, heads = self.stack, self.heads
                        heads.append(line)
                        continue
                    if match is not None and inside:
                        self.torn = True
                        self.rest.append(line)
                        continue
                    if "hread " in line and self.header(line):
                        self.new_thread(line)
                        stack, heads = self.stack, self.heads
                        inside, last = True, ""
                        continue
                inside = self.other(line, inside, key)
                stack, heads = self.stack, self.heads
                if not stack:  # it was a head: the next frame is a thread's first
                    last = ""
        self.opened, self.key, self.inside, self.last = opened, text_key, inside, last

    def is_frame(self, match: re.Match[str], inside: bool) -> bool:
        """Return whether a line with a number is a frame; a bare name is one only among frames."""
        number, body = match.groups()
        if is_frame(body):
            return True
        among = inside and (self.in_thread or bool(self.stack))
        return (among or (int(number) == 0 and self.begins_bare)) and is_bare(body)

    @functools.cached_property
    def begins_bare(self) -> bool:
        """Whether a stack can begin without the head of a thread, and with a bare name."""
        return _TWO_FRAMES.search(self.text) is not None

    def header(self, line: str) -> bool:
        return _HEADER.match(line) is not None and (
            "LWP" in line or line.rstrip()[-1:] in (":", ")")
        )

    def new_thread(self, line: str) -> None:
        self.end_thread()
        self.in_thread = True
        self.switched = line.lstrip().startswith("[Switching")
        lwp = _LWP.search(line)
        self.tid = int(next(group for group in lwp.groups() if group)) if lwp else 0
        own = _NUMBER.search(line)
        self.number = int(own.group(1)) if own else 0
        quoted = _NAME.search(line)
        self.name = quoted.group(1) if quoted else ""

    def other(self, line: str, inside: bool, key: str) -> bool:
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
            if line[0] in " \t" and len(key) < MAX_KEPT and not _marks(line):
                self.keep(key, _LOCAL)
            return True  # locals of `bt full`
        self.rest.append(line)
        return False

    def close(self) -> None:
        """Parse a frame that is complete, and remember it by its text without the arguments."""
        opened, key = self.opened, self.key
        if opened is None:
            return
        self.opened = None
        text = squeeze(" ".join(opened.parts))
        raw, start = parse(text)
        index = self.frame_index.get(raw)
        if index is None:
            index = self.frame_index[raw] = len(self.frames)
            self.frames.append(raw)
            self.kinds[index] = LOCKERS.get(bare(normalize(raw[0]))) if raw[0] else None
        self.stack.append(index)
        locks = self.kinds[index] is not None
        if locks:
            self.find_lock(index, text[start:])
        if len(opened.parts) == 1 and not opened.depth and key[1]:
            self.remember(raw, key, text, ~index if locks else index)

    def remember(self, raw: RawFrame, key: tuple[str, str], text: str, value: int) -> None:
        """Keep what makes a frame differ from all others: its name, and pc, source or library."""
        if len(self.by_text) >= _MAX_CACHE:
            self.by_text.clear()
        if not key[0].endswith(raw[0] or "??"):
            self.by_text[text, ""] = value  # a name with blanks and parentheses in it
        elif raw[1] is not None or raw[2] is not None or raw[3] is not None:
            self.by_text[key] = value

    def keep(self, line: str, value: int) -> None:
        """Remember a line without its values: many threads have it."""
        if len(self.by_line) >= _MAX_CACHE:
            self.by_line.clear()
        self.by_line[line] = value

    def find_lock(self, frame: int, text: str) -> None:
        kind = self.kinds[frame]
        if self.lock is not None or kind is None or len(self.stack) > _LOCK_DEPTH:
            return
        match = LOCK_ARGUMENT.search(text[:MAX_LINE])
        if match is not None and (address := int(match.group(1), 16)):
            self.lock = (address, kind.value, match.group(2))

    def restart(self) -> None:
        """End the stack; but one frame after `[Switching to thread` is of the `bt` to come."""
        if self.switched and len(self.stack) == 1:
            self.stack = []
            self.heads = []
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
            first, ordered = _order(self.heads)
            lost = self.torn or not ordered or (first > 0 and not self.continues)
            if lost and self.unwind == "complete":
                self.unwind = "lost"
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
                    first,
                )
            )
        self.reset()


def _order(heads: Sequence[str]) -> tuple[int, bool]:
    """Return the first frame's number, and whether each number follows the one before."""
    if all(map(str.startswith, heads, _NUMBERED)):
        return 0, True
    found = [_FRAME_NUMBER.match(head) for head in heads]
    numbers = [int(match.group(1)) for match in found if match is not None]
    # Inlined functions can have the number of the frame that they are in.
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    return (numbers[0] if numbers else 0), steps <= {0, 1}


def _lock(body: str, lockers: Sequence[tuple[int, str]]) -> tuple[int, str, str | None] | None:
    """Return the lock that a thread waits for: the first of these lines that shows one."""
    lines = body.split("\n", _LOCK_DEPTH)
    for place, kind in lockers:
        match = LOCK_ARGUMENT.search(lines[place][:MAX_LINE])
        if match is not None and (address := int(match.group(1), 16)):
            return address, kind, match.group(2)
    return None


def _marks(line: str) -> bool:
    """Return whether an indented line can be more than a variable's value."""
    return is_continuation(line) or any(text in line for text, _ in _STOPPED)

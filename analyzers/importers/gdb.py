# SPDX-License-Identifier: Apache-2.0
"""gdb and pstack text: ``thread apply all bt`` or ``bt full``, of any gdb since 7, whole or torn.

What gdb does not say stays unknown: the state of a thread is ``?``, its label None. Where gdb
printed the address of the lock that a thread waits for, the capture has that lock, without owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stallscope.analyzers.names import bare, normalize
from stallscope.errors import StallscopeError
from stallscope.model import Capture, Frame, Lock, LockKind, Module, Note, Process, Thread

__all__ = ["load", "sniff"]

MAX_THREADS = 200_000
MAX_FRAMES = 1_000
MAX_LINE = 65_536
MAX_LOGICAL = 262_144
"""Characters of one frame over all its lines."""

_FRAME = re.compile(r"\s*#(\d{1,7})\s+(\S.*)")
_SNIFF = re.compile(
    r"^[ \t]*#\d{1,7}[ \t]+(?:0x[0-9a-f]+ in \S|(?!0x)[^\s(][^\n]{0,2000}? \()", re.M
)
_HEADER = re.compile(
    r"\s*(?:\[Switching to )?[Tt]hread (?:\d{1,9}(?:\.\d{1,9})?|0x[0-9a-f]{1,16}) \("
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
_PC = re.compile(r"0x([0-9a-f]{1,16}) in ")
_SIMPLE = re.compile(r"([\w:~$.@*]+) \(")
_SOURCE = re.compile(r"\)\s+at (\S[^()]{0,4096}:\d+)\s*$")
_LIBRARY = re.compile(r"\)\s+from (\S[^()\"]{0,4096}?)\s*$")
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


def sniff(text: str) -> bool:
    """Say whether the text holds frames as gdb prints them."""
    return _SNIFF.search(text) is not None


def load(text: str, name: str) -> list[Capture]:
    """Read all dumps in the text, one Capture each; text around them is ignored."""
    reader = _Reader(name)
    for line in _lines(text):
        reader.line(line)
    return reader.finish()


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if len(line) > MAX_LINE:
            line = line[:MAX_LINE]
        if "Type <" in line:
            line = _PAGER.sub("", line, count=1)
            if not line:
                continue
        yield line.rstrip("\r")


class _Open:
    """A frame whose lines are still coming; knows whether its argument list is closed."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.parts = [text]
        self.size = len(text)
        self.depth = 0
        self.quoted = ""
        self.scan(text)

    def scan(self, text: str) -> None:
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
                elif char == self.quoted:
                    self.quoted = ""
            elif char == '"':
                self.quoted = char
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
        stripped = line.strip()
        if not stripped:
            return False
        if self.depth <= 0 and not (stripped.startswith(("at ", "from ")) and len(self.parts) < 64):
            return False
        if self.size > MAX_LOGICAL:
            return True
        self.parts.append(stripped)
        self.size += len(stripped)
        self.scan(stripped)
        return True


class _Reader:
    """Turns lines into threads, and threads into captures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.captures: list[Capture] = []
        self.frame_cache: dict[tuple[str | None, int | None, str | None, str | None], Frame] = {}
        self.modules: dict[str, Module] = {}
        self.open: _Open | None = None
        self.reset()

    def reset(self) -> None:
        self.threads: list[Thread] = []
        self.seen: set[int] = set()
        self.locks: dict[int, tuple[LockKind, str | None]] = {}
        self.lock_index: dict[int, int] = {}
        self.frames: list[Frame] = []
        self.lock: int | None = None
        self.last = -1
        self.tid = 0
        self.thread_name = ""
        self.count = 1
        self.in_thread = False
        self.unwind = "complete"
        self.pid = 0
        self.exe: str | None = None
        self.notes: list[Note] = []
        self.too_deep = 0

    def line(self, line: str) -> None:
        frame = _FRAME.match(line) if "#" in line else None
        if frame is not None:
            self.end_frame()
            self.start_frame(int(frame.group(1)), frame.group(2))
            return
        if (
            "hread " in line
            and _HEADER.match(line)
            and ("LWP" in line or line.rstrip()[-1:] in ":)")
        ):
            self.end_frame()
            self.header(line)
            return
        if self.open is not None and self.open.add(line):
            return
        self.end_frame()
        self.other(line)

    def other(self, line: str) -> None:
        if _DUMP_START.match(line):
            self.end_thread()
            if self.threads:
                self.end_capture()
            attached = _ATTACHED.match(line)
            if attached:
                self.exe, self.pid = attached.group(1), int(attached.group(2))
            return
        counted = _COUNTED.match(line)
        if counted:  # bt-aggregate's heads of equal stacks
            self.end_thread()
            self.count = max(1, int(counted.group(1)))
            self.in_thread = True
            return
        for text, unwind in _STOPPED:
            if self.frames and text in line:
                self.unwind = unwind
                return

    def header(self, line: str) -> None:
        self.end_thread()
        lwp = _LWP.search(line)
        tid = int(next(group for group in lwp.groups() if group)) if lwp else 0
        if tid and tid in self.seen:
            self.end_capture()
        number = _NUMBER.search(line)
        if number and number.group(1) == "1" and not self.pid:
            self.pid = tid
        self.tid = tid
        self.in_thread = True
        name = _NAME.search(line)
        self.thread_name = name.group(1) if name else ""

    def start_frame(self, number: int, body: str) -> None:
        if number <= self.last:
            self.end_thread()
        self.last = number
        self.open = _Open(number, body)

    def end_frame(self) -> None:
        if self.open is None:
            return
        text = " ".join(self.open.parts)
        self.open = None
        if len(self.frames) >= MAX_FRAMES:
            self.too_deep += len(self.frames) == MAX_FRAMES and self.unwind != "limit"
            self.unwind = "limit"
            return
        frame, rest = self.parse(text)
        self.frames.append(frame)
        if self.lock is None and frame.symbol is not None and len(self.frames) <= _LOCK_DEPTH:
            self.find_lock(frame.symbol, rest)

    def parse(self, text: str) -> tuple[Frame, str]:
        """Return the frame and what stands after its name."""
        pc = None
        start = 0
        address = _PC.match(text)
        if address:
            pc = int(address.group(1), 16)
            start = address.end()
        simple = _SIMPLE.match(text, start)
        end = simple.end(1) if simple else _name_end(text, start)
        symbol: str | None = text[start:end].strip(" *")
        if symbol in ("??", ""):
            symbol = None
        rest = text[end:]
        source = _SOURCE.search(rest) if " at " in rest else None
        library = _LIBRARY.search(rest) if source is None and " from " in rest else None
        key = (
            symbol,
            pc,
            source.group(1) if source else None,
            library.group(1) if library else None,
        )
        frame = self.frame_cache.get(key)
        if frame is None:
            module = self.module(key[3]) if key[3] else None
            frame = Frame(symbol=symbol, module=module, pc=pc, source=key[2])
            self.frame_cache[key] = frame
        return frame, rest

    def module(self, path: str) -> Module:
        module = self.modules.get(path)
        if module is None:
            module = self.modules[path] = Module(process=0, path=path)
        return module

    def find_lock(self, symbol: str, arguments: str) -> None:
        name = bare(normalize(symbol))
        kind = _LOCKERS.get(name)
        if kind is None:
            return
        match = _LOCK_ARGUMENT.search(arguments[:MAX_LINE])
        if match is None:
            return
        address = int(match.group(1), 16)
        if not address:
            return
        symbol_name = match.group(2)
        if address not in self.locks:
            self.lock_index[address] = len(self.locks)
            self.locks[address] = (kind, symbol_name)
        elif symbol_name and not self.locks[address][1]:
            self.locks[address] = (self.locks[address][0], symbol_name)
        self.lock = address

    def end_thread(self) -> None:
        self.end_frame()
        while self.frames and self.frames[-1].symbol is None and not self.frames[-1].pc:
            self.frames.pop()
        if self.frames:
            if len(self.threads) >= MAX_THREADS:
                raise StallscopeError(
                    f"{self.name}: more than {MAX_THREADS} threads in one dump: split it"
                )
            self.threads.append(
                Thread(
                    tid=self.tid,
                    frames=tuple(self.frames),
                    name=self.thread_name,
                    unwind=self.unwind,
                    count=self.count,
                    lock=self.lock_index[self.lock] if self.lock is not None else None,
                )
            )
            if self.tid:
                self.seen.add(self.tid)
        elif self.in_thread:
            self.notes.append(Note("no-frames", f"thread {self.tid} has no frames in {self.name}"))
        self.frames = []
        self.lock = None
        self.last = -1
        self.tid = 0
        self.thread_name = ""
        self.count = 1
        self.in_thread = False
        self.unwind = "complete"

    def end_capture(self) -> None:
        waiters: dict[int, int] = {}
        for thread in self.threads:
            if thread.lock is not None:
                waiters[thread.lock] = waiters.get(thread.lock, 0) + thread.count
        locks = tuple(
            Lock(
                process=0,
                address=address,
                kind=kind,
                symbol=symbol,
                waiters=waiters.get(self.lock_index[address], 0),
                source="frames",
            )
            for address, (kind, symbol) in self.locks.items()
        )
        if self.too_deep:
            self.notes.append(
                Note("frames-cut", f"{self.too_deep} stacks are deeper than {MAX_FRAMES}: cut")
            )
        self.captures.append(
            Capture(
                backend="gdb",
                processes=(Process(pid=self.pid, exe=self.exe),),
                threads=tuple(self.threads),
                locks=locks,
                modules=tuple(self.modules.values()),
                notes=tuple(self.notes[:1000]),
                path=self.name,
            )
        )
        self.reset()

    def finish(self) -> list[Capture]:
        self.end_thread()
        if self.threads:
            self.end_capture()
        if not self.captures:
            raise StallscopeError(f"{self.name}: no stack of gdb could be read in it")
        return self.captures


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

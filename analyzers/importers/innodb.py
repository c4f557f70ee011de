# SPDX-License-Identifier: Apache-2.0
"""``SHOW ENGINE INNODB STATUS``, and the semaphore waits and monitor output in error logs.

What analyzers can match on (all of it from the report, nothing is guessed):

- a semaphore waiter is a thread with one frame without symbol, whose ``source`` is the place that
  waits (``btr0cur.c:443``), with ``waited_ns``, and a lock with ``source = "status"``;
- the lock's ``symbol`` is its name where the server prints one (``kernel_mutex``,
  ``new_index->lock``, ``TRX_SYS``), ``created`` where it was made (``dict0dict.c:1627`` is an
  index's lock, ``buf0buf.c:916`` a page's latch, ``btr0sea.c:139`` the adaptive hash index's),
  ``mode`` how it is held (``exclusive``, ``wait exclusive``, ``SX``), ``locked_at`` where it was
  last taken for writing, ``owner_tid`` the writer. A writer in ``wait exclusive`` waits for the
  readers itself: for it the lock has no owner;
- an owner that waits for nothing is a thread whose one frame is ``locked_at``;
- a transaction is a thread with ``activity`` (``estimating records in index range``), ``query``
  and ``connection``; one that waits for a row has a lock of kind ``row`` (``table`` for table and
  AUTO-INC locks), whose ``symbol`` is the index and table, and an owner where the report lists
  the locks that are held;
- the latest deadlock is history: ``strings["innodb_deadlock"]``, one line.

Thread ids are ``pthread_t``, as in the report, so a file with stacks and a status has two captures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from stallscope.analyzers.importers import shapes
from stallscope.analyzers.importers.dump import (
    Dump,
    Format,
    LineReader,
    Loaded,
    basename,
    read_lines,
)
from stallscope.model.capture import Capture, Frame, Lock, LockKind
from stallscope.server import deadlocks
from stallscope.server.innodb_lines import (
    CONNECTION,
    LOCK,
    OS_THREAD,
    PAGE,
    TRANSACTION,
    activity,
    handle,
    who,
)

__all__ = ["FORMAT"]

MAX_QUERY = 16_384

_MONITOR = re.compile(r"INNODB MONITOR OUTPUT\s*$")
_RULE = re.compile(r"[-=]{4,}\s*$")
_WAIT = re.compile(
    r"--Thread (\d{1,20}) has waited at (\S+) line (\d{1,7})"
    r" for (\d{1,9}(?:\.\d{1,9})?) seconds the semaphore"
)
# Where a mail or a terminal wraps what InnoDB prints on one line.
_WRAPPED = re.compile(
    r"(--Thread \d{1,20} has waited at \S{1,200}(?: line(?: \d{1,7}(?: for(?: [\d.]{1,12}"
    r"(?: seconds(?: the)?)?)?)?)?)?|created in file|has reserved it in|locked in file)"
    r"[ \t]*\n[ \t]*(?=\S)"
)
_PLACE = r"\S{1,200} line \d{1,7}"
_MODE = r"(?:X|S|SX|IX|IS|AUTO-INC)(?:,\w{1,20}){0,3}"
# Lines that InnoDB prints whole: how they start, and what they are.
_ENTIRE = tuple(
    (start, re.compile(f"{re.escape(start)}{rest}\\s*"))
    for start, rest in (
        (
            "--Thread ",
            rf"\d{{1,20}} has waited at {_PLACE} for [\d.]{{1,12}} seconds the semaphore:?",
        ),
        (
            "S-lock",
            rf" (?:\(wait_ex\) )?on RW-latch at 0x[0-9a-f]{{1,16}}(?: '[^']{{1,200}}')?"
            rf"(?: created in file {_PLACE})?",
        ),
        (
            "a writer ",
            r"\(thread id \d{1,20}\) has reserved it in mode\s+(?:wait )?(?:exclusive|SX)",
        ),
        (
            "Last time ",
            rf"\w{{4,8}} (?:locked|reserved)? ?(?:by thread \d{{1,20}} )?in file {_PLACE}",
        ),
        (
            "RECORD LOCKS ",
            r"space id [^\n]{1,1000} lock[_ ]mode "
            rf"{_MODE}(?: locks (?:rec but not gap|gap before rec))?(?: insert intention)?"
            r"(?: waiting)?",
        ),
        (
            "TABLE LOCK ",
            rf"table [^\n]{{1,1000}} lock[_ ]mode {_MODE}(?: waiting)?",
        ),
        ("-------", r"-* TRX HAS BEEN WAITING \d{1,12} \w{2,3} FOR THIS LOCK TO BE GRANTED:?"),
        ("---TRANSACTION ", r"[\dA-F ]{1,40}, (?:not started|ACTIVE)[^\n]{0,300}"),
    )
)
_MUST_BE_READ = re.compile(
    r".{0,200}?(?:--Thread \d{1,20} has|---TRANSACTION \S|RECORD LOCKS space id|TABLE LOCK table)"
)
_LATCHES = ("X-lock", "S-lock", "SX-lock")
_PARTS = 4
"""The most lines that one was wrapped to."""
_MUTEX = re.compile(
    r"\bMutex at (0x[0-9a-f]{1,16})"
    r"(?: '&?(?P<quoted>[^']{1,200})'|, Mutex (?P<name>\w{1,100}))?"
    r"(?: created (?:in )?(?:file )?(?P<file>[^\s,:]+)(?: line |:)(?P<line>\d{1,7}))?"
)
_LATCH = re.compile(
    r"(?P<how>S|X|SX)-lock (?P<ex>\(wait_ex\) )?on RW-latch at (?P<at>0x[0-9a-f]{1,16})"
    r"(?: '&?(?P<quoted>[^']{1,200})')?"
    r"(?: created in file (?P<file>\S+) line (?P<line>\d{1,7}))?"
)
_WRITER = re.compile(
    r"a writer \(thread id (\d{1,20})\) has reserved it in mode\s+(\w[\w ]{0,30}\w)"
)
_READERS = re.compile(r"number of readers (\d{1,9})\b")
_WRITTEN = re.compile(r"Last time write locked in file (\S+) line (\d{1,7})")
_RESERVED = re.compile(r"Last time reserved (?:in file|by thread \d+ in file) (\S+) line (\d{1,7})")
_READ = re.compile(r"Last time read locked in file")
_HOLDER = re.compile(r"Holder thread (\d{1,20}) file (\S+) line (\d{1,7})")
_FLAGS = re.compile(r"(?:number of readers \d+, )?waiters flag \d+|wait (?:has ended|is ending)")

_TABLES = re.compile(r"mysql tables in use \d+")
_STRUCTS = re.compile(r"(?:LOCK WAIT |ROLLING BACK )?\d+ lock struct\(s\)")
_UNDO = re.compile(r"(?:\d+ row lock\(s\)|undo log entries|Trx read view|ROLLING BACK)")
_WAITING = re.compile(
    r"-+\s*TRX HAS BEEN WAITING (\d{1,10}) (SEC|ms|us)?.*FOR THIS LOCK TO BE GRANTED", re.I
)
_RECORD = re.compile(r"Record lock, heap no|\s*\d+: len \d+;|\s*\d+: SQL NULL")
_MAIN = re.compile(
    r"(?:Main thread process no\. \d+, id (\d{1,20})"
    r"|Process ID=\d+, Main thread ID=(\d{1,20})), state: (.{1,100}?)\s*$"
)
_RESTS = frozenset({"sleeping", "waiting for server activity", "suspending"})
_DEADLOCK = "LATEST DETECTED DEADLOCK"


class _Transaction(msgspec.Struct):
    """One transaction of the report."""

    id: str
    active: bool = True
    seconds: int | None = None
    tid: int = 0
    connection: int | None = None
    user: str = ""
    activity: str | None = None
    query: list[str] = []
    waits: str | None = None
    """The row or table that it waits for."""
    waits_kind: LockKind = LockKind.ROW
    waited_ns: int | None = None
    holds: set[str] = set()
    open: bool = True
    """Its lines are still coming."""

    @property
    def queues(self) -> bool:
        """Whether it waits to enter InnoDB, which limits the threads inside."""
        return (self.activity or "").startswith("sleeping before ")


class _Waiter(msgspec.Struct):
    """One cell of the wait array."""

    tid: int
    place: str
    seconds: float
    at: int = 0
    kind: LockKind = LockKind.INTERNAL
    symbol: str | None = None
    created: str | None = None
    exclusive_pending: bool = False
    owner: int | None = None
    mode: str | None = None
    readers: int | None = None
    locked_at: str | None = None


class _Reader(LineReader):
    """Lines to reports; a monitor's head, or a waiter seen twice, begins a new one."""

    backend = "innodb-status"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.reset()

    def reset(self) -> None:
        self.waiters: list[_Waiter] = []
        self.waiting: set[int] = set()
        self.waiter: _Waiter | None = None
        self.transactions: list[_Transaction] = []
        self.transaction: _Transaction | None = None
        self.monitor = False
        self.section = ""
        self.ruled = False
        self.deadlock: list[str] = []
        self.main: tuple[int, str] | None = None
        self.mariadb = False
        self.expect_lock = False

    def line(self, line: str) -> bool:
        if "INNODB MONITOR OUTPUT" in line and _MONITOR.search(line):
            if "END OF" in line:
                self.end()
            else:
                self.end()
                self.monitor = True
            return True
        if _RULE.match(line) and (self.monitor or self.waiters):
            self.ruled = True
            self.transaction = None
            return True
        if self.ruled:
            self.ruled = False
            title = line.strip()
            # The date of the latest deadlock is there, too.
            if title[:1].isalpha() and title == title.upper() and len(title) < 60:
                self.section = title
                return True
        if self.semaphore(line):
            return True
        if self.section == _DEADLOCK:
            if len(self.deadlock) < 400:
                self.deadlock.append(line)
            return True
        return self.trx(line) or (self.monitor and _MUST_BE_READ.match(line) is None)

    def semaphore(self, line: str) -> bool:
        if "--Thread" in line and (match := _WAIT.search(line)):
            tid = int(match.group(1))
            if not self.monitor and tid in self.waiting:
                self.end()
            self.waiting.add(tid)
            place = f"{basename(match.group(2))}:{match.group(3)}"
            self.waiter = _Waiter(tid, place, float(match.group(4)))
            self.waiters.append(self.waiter)
            return True
        waiter = self.waiter
        if waiter is None:
            return False
        if match := _LATCH.search(line):
            waiter.kind = LockKind.RWLOCK
            waiter.at = int(match["at"], 16)
            waiter.exclusive_pending = match["ex"] is not None
            self.made(waiter, match)
        elif match := _MUTEX.search(line):
            waiter.kind = LockKind.INTERNAL
            waiter.at = int(match.group(1), 16)
            self.made(waiter, match)
            waiter.symbol = waiter.symbol or match["name"]
        elif match := _WRITER.search(line):
            waiter.owner, waiter.mode = int(match.group(1)), match.group(2)
            if waiter.owner == waiter.tid and waiter.mode == "wait exclusive":
                waiter.exclusive_pending = True
        elif match := _WRITTEN.search(line) or _RESERVED.search(line):
            if match.group(2) != "0":
                waiter.locked_at = f"{basename(match.group(1))}:{match.group(2)}"
        elif match := _HOLDER.search(line):
            if match.group(1) != "0":
                waiter.owner = int(match.group(1))
                waiter.mode = waiter.mode or "exclusive"
        elif match := _READERS.search(line):
            waiter.readers = int(match.group(1))
        elif not (_READ.search(line) or _FLAGS.search(line)):
            if line.strip():
                self.waiter = None
            return False
        return True

    @staticmethod
    def made(waiter: _Waiter, match: re.Match[str]) -> None:
        waiter.symbol = match["quoted"]
        if match["file"]:
            waiter.created = f"{basename(match['file'])}:{match['line']}"

    def trx(self, line: str) -> bool:
        if "TRANSACTION " in line and (match := TRANSACTION.match(line)):
            tid = OS_THREAD.search(match.group(4))
            self.transaction = _Transaction(
                id=match.group(1),
                active=match.group(2) != "not started",
                seconds=int(match.group(3)) if match.group(3) else None,
                tid=handle(tid.group(1)) if tid else 0,
                activity=activity(match.group(4), tid),
                query=[],
                holds=set(),
            )
            self.transactions.append(self.transaction)
            return True
        if match := _MAIN.match(line):
            self.main = (int(match.group(1) or match.group(2)), match.group(3))
            return True
        if match := _WAITING.match(line):
            if self.transaction is not None:
                unit = {"ms": 10**6, "us": 10**3}.get(match.group(2) or "", 10**9)
                self.transaction.waited_ns = int(match.group(1)) * unit
                self.transaction.open = False
                self.expect_lock = True
            return True
        if match := LOCK.match(line):
            self.row_lock(match)
            return True
        trx = self.transaction
        if trx is None:
            return False
        if match := CONNECTION.match(line):
            self.mariadb = self.mariadb or line.startswith("MariaDB")
            trx.connection = int(match.group(1))
            trx.tid = trx.tid or handle(match.group(2))
            trx.user, state = who(match.group(4))
            if not trx.queues:
                trx.activity = state or trx.activity
            return True
        if _TABLES.match(line) or _STRUCTS.match(line) or _UNDO.match(line) or _RECORD.match(line):
            return True
        if trx.open and trx.connection is not None and line.strip():
            if sum(map(len, trx.query)) < MAX_QUERY:
                trx.query.append(line)
            return True
        return not line.strip()

    def row_lock(self, match: re.Match[str]) -> None:
        where = match["where"]
        page = PAGE.match(where)
        if page:
            where = f"{page.group(4)} {page.group(3)} space {page.group(1)} page {page.group(2)}"
        else:
            where = where.removeprefix("table ")
        trx = self.transaction
        if trx is None:
            return
        trx.open = False
        if "waiting" in match["more"] or self.expect_lock:
            trx.waits = where
            if match["what"] == "TABLE LOCK":
                trx.waits_kind = LockKind.TABLE
                if match["mode"].startswith("AUTO"):
                    trx.waits = f"AUTO-INC of {where}"
                    trx.waits_kind = LockKind.AUTO_INC
            self.expect_lock = False
        elif match["mode"].startswith(("X", "AUTO")):
            trx.holds.add(f"AUTO-INC of {where}" if match["mode"].startswith("AUTO") else where)

    def end(self) -> None:
        """Make a capture of what was read, if it holds anything."""
        if self.waiters or self.monitor or any(trx.tid for trx in self.transactions):
            self.captures.append(_capture(self))
        self.reset()


def _capture(report: _Reader) -> Capture:
    dump = Dump(report.backend, report.name)
    dump.comm = "mariadbd" if report.mariadb else "mysqld"
    if report.deadlock:
        dump.strings["innodb_deadlock"] = _deadlock(report.deadlock)
    by_tid = {trx.tid: trx for trx in report.transactions if trx.tid}
    # Page latches that a read is filling name the last writer, who may be the waiter itself.
    self_owned = {w.at for w in report.waiters if w.owner == w.tid and not w.exclusive_pending}
    seen: set[int] = set()
    locks: dict[tuple[int, int | None], int] = {}
    for waiter in report.waiters:
        if waiter.tid in seen:
            continue
        seen.add(waiter.tid)
        lock = _semaphore(dump, waiter, locks, doubtful=waiter.at in self_owned)
        _add(dump, waiter.tid, waiter.place, by_tid.get(waiter.tid), lock, waiter.seconds)
    for waiter in report.waiters:
        owner = waiter.owner
        if owner and owner not in seen and waiter.at not in self_owned:
            seen.add(owner)
            _add(dump, owner, waiter.locked_at, by_tid.get(owner), None, None)
    holders = {where: trx for trx in report.transactions for where in trx.holds}
    for trx in report.transactions:
        if not (trx.active or trx.queues) or (trx.tid and trx.tid in seen):
            continue
        seen.add(trx.tid)
        held = holders.get(trx.waits or "")
        index = None
        if trx.waits is not None:
            index = dump.lock(
                0,
                trx.waits_kind,
                symbol=trx.waits,
                source="status",
                owner_tid=held.tid if held is not None and held is not trx else None,
            )
        _add(dump, trx.tid, None, trx, index, None)
    if report.main is not None and report.main[0] not in seen and report.main[1] not in _RESTS:
        dump.thread((), tid=report.main[0], name="srv_master", activity=report.main[1])
    return dump.capture()


def _semaphore(
    dump: Dump, waiter: _Waiter, known: dict[tuple[int, int | None], int], *, doubtful: bool
) -> int:
    lock = Lock(
        process=0,
        address=waiter.at,
        kind=waiter.kind,
        symbol=waiter.symbol,
        created=waiter.created,
        mode=waiter.mode,
        locked_at=waiter.locked_at,
        readers=waiter.readers,
        owner_tid=None if doubtful or waiter.exclusive_pending else waiter.owner,
        source="status",
    )
    index = known.setdefault((lock.address, lock.owner_tid), len(dump.locks))
    if index == len(dump.locks):
        dump.locks.append(lock)
    return index


def _add(
    dump: Dump,
    tid: int,
    place: str | None,
    trx: _Transaction | None,
    lock: int | None,
    seconds: float | None,
) -> None:
    frames: list[Frame] = [dump.frame(None, source=place)] if place else []
    waited = None if seconds is None else int(seconds * 1e9)
    if trx is None:
        dump.thread(frames, tid=tid, lock=lock, waited_ns=waited)
        return
    active = None if trx.seconds is None else trx.seconds * 10**9
    dump.thread(
        frames,
        tid=tid,
        lock=lock,
        name=trx.user,
        connection=trx.connection,
        activity=trx.activity,
        query="\n".join(trx.query)[:MAX_QUERY] or None,
        waited_ns=next((t for t in (waited, trx.waited_ns, active) if t is not None), None),
    )


def _deadlock(lines: list[str]) -> str:
    """Say in one line when the latest deadlock was, between whom, and whom it cost."""
    found = deadlocks.of_section(lines, 0, "")
    if found is None:
        return ""
    locks = [lock for t in found.transactions for lock in (*t.holds, t.waits) if lock is not None]
    tables = sorted({lock.table for lock in locks})
    parts = [
        found.server_time or "",
        f"transactions {', '.join(t.transaction for t in found.transactions[:4])}",
        f"on {', '.join(tables[:4])}" if tables else "",
        "" if found.victim is None else f"the server rolled back ({found.victim + 1})",
    ]
    return "; ".join(part for part in parts if part)[:1000]


def sniff(text: str) -> bool:
    """Return whether a monitor's output or a semaphore wait is in the text."""
    return "INNODB MONITOR OUTPUT" in text or " seconds the semaphore" in text


def load(text: str, name: str) -> Loaded:
    """Read every report in the text."""
    return read_lines("\n".join(_entire(_WRAPPED.sub(r"\1 ", text).split("\n"))), _Reader(name))


def _entire(lines: list[str]) -> Iterator[str]:
    """Join the parts of lines that InnoDB prints whole."""
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        key = "S-lock" + line[line.find("-lock") + 5 :] if line.startswith(_LATCHES) else line
        known = next((whole for start, whole in _ENTIRE if key.startswith(start)), None)
        if known is not None and len(line) < MAX_QUERY:
            joined = [key]
            for number in range(1, _PARTS):
                rest = lines[at + number - 1][:1000] if at + number <= len(lines) else ""
                if not rest.strip() or shapes.begins(rest) is not False:
                    break
                joined = [before + between + rest for before in joined for between in ("", " ")]
                if found := next((text for text in joined if known.fullmatch(text)), None):
                    line = line[: line.find("-lock")] + found[1:] if key is not line else found
                    at += number
                    break
        yield line


FORMAT = Format(_Reader.backend, sniff, load)

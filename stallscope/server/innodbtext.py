# SPDX-License-Identifier: Apache-2.0
"""``SHOW ENGINE INNODB STATUS`` without the data in it.

The report prints statements with their literals and records with their values. It fails closed:
a line is kept where InnoDB itself is known to print such a line, and every word in it is one of
InnoDB's; statements are normalized (`statements`); all else is left out, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from stallscope.base.text import clean
from stallscope.server.statements import Statement

__all__ = ["MAX_STATEMENTS", "redact"]

MAX_STATEMENTS = 500
"""Statements that are normalized; those of further transactions are left out."""
_MAX_LINE = 400

_WORDS = """
    a access active activity adaptive added additional age ago ahead aio allocated and array
    assigned at auto-inc autoinc averages avg back background be been bits buf_pool buffer
    buffers but by bytes cache calculated capacity checkpoint chkp closing committed compact
    completed compressed conflicting constant count counter created creates cur current
    database db deadlock deadlocks declared delete deleted deletes descriptors detected
    diagnostic dictionary dirty discarded doing done each ended entries error estimated
    estimating ev evicted excl exclusive factor fail fetching file flag flush flushed flushes
    flushing for foreign format free from fsync fsyncs gap gets granted handler has hash heap
    hidden history hit holder holds i ibuf id idle ids in index individual individually info
    innodb insert inserted inserting inserts inside intention internal is it ix key large last
    latch latest len length limit line list lock lock_word locked locks log loops low lru lwm
    made main making mark max maximum memory merged merges metadata minimum mode modified
    monitor mutex mysql n n_fields no node non normal not null number o obtain of old oldest on
    only open operations os os_log out output page pages pending per percent physical pool
    preads prepared preparing print printing printout process purge pwrites queries query queue
    random range rate read readers reading reads rec record records recovery recs redo request
    requests reservation reserved roll rollback rolling rounds row rows running rw s searches
    sec second seconds secs see sees seg semaphore semaphores sequence server session set
    shared shutdown signal since single size skip sleeping sleeps space spin spins srv_active
    srv_idle srv_master_thread srv_shutdown start started starting starts state status stored
    struct structs sum supremum suspending sx sync synchronous system table tables target tasks
    the this thread threads time to total transaction transactions truncate trx trx_sys type
    undo unzip unzip_lru up updated updates updating us use used var variable view views wait
    wait_ex waited waiters waiting waits was we were will with without word write writer
    writers writes written x yet young youngs
"""
_KNOWN = frozenset(_WORDS.split())
_TITLES = frozenset(
    {"BACKGROUND THREAD", "SEMAPHORES", "LATEST FOREIGN KEY ERROR", "LATEST DETECTED DEADLOCK"}
    | {"TRANSACTIONS", "FILE I/O", "INSERT BUFFER AND ADAPTIVE HASH INDEX", "HASH INDEX", "LOG"}
    | {"INSERT BUFFER", "BUFFER POOL AND MEMORY", "INDIVIDUAL BUFFER POOL INFO", "ROW OPERATIONS"}
    | {"END OF INNODB MONITOR OUTPUT"}
)
_RULE = re.compile(r"[-=]{3,}\s*$")
_STAMP = re.compile(
    r"\d{2,4}-?\d\d-?\d\d +\d{1,2}:\d\d:\d\d(?: (?:0x)?[0-9a-f]{1,20})?"
    r"(?: INNODB MONITOR OUTPUT)?\s*$"
)
_TRANSACTION = re.compile(
    r"(?P<head>(?:---)?TRANSACTION \(?[0-9A-Fa-fx]{1,20}(?: \d{1,20})?\)?,"
    r" (?:ACTIVE|not started|COMMITTED|PREPARED|ROLLING BACK)(?: \(PREPARED\))?"
    r"(?: \d{1,10} sec)?)(?P<more>.*)"
)
_CONNECTION = re.compile(
    r"(?:MySQL|MariaDB) thread id \d{1,18}(?:, OS thread handle (?:0x[0-9a-f]{1,16}|\d{1,20}))?"
    r", query id \d{1,18}(?: .*)?$"
)
_NAME = r"(?:[`\"][^`\"']{1,200}[`\"](?:\.[`\"][^`\"']{1,200}[`\"])?|\w{1,64})"
_LOCK = re.compile(
    rf"(?:RECORD LOCKS space id \d{{1,10}} page no \d{{1,10}} n bits \d{{1,6}} index {_NAME}"
    rf" of table|TABLE LOCK table) {_NAME} trx id [0-9A-Fa-f]{{1,20}} lock[_ ]mode (?P<more>.*)"
)
_RECORD = re.compile(r"\s*\d{1,5}: (?:len \d|SQL NULL)")
# What ends a statement, which can have any number of lines, empty ones among them.
_MARK = re.compile(
    r"---TRANSACTION |TRANSACTION [0-9A-Fa-f(]|Trx read view |-+ TRX HAS BEEN WAITING \d"
    r"|TABLE LOCK table |RECORD LOCKS space id \d"
    r"|\*\*\* (?:\(\d|WE ROLL BACK|WAITING FOR THIS LOCK|CONFLICTING WITH)"
    r"|Foreign key constraint fails for table "
)
_QUOTED = re.compile(r"'&?[A-Za-z_][\w.>()\[\]-]{0,80}'")
"""The name of a lock in InnoDB's source."""
_PLACE = re.compile(r"[\w./-]{1,100}\.(?:cc|ic|c|h)\b(?::\d{1,7})?")
_HEX = re.compile(r"\b(?:0x[0-9a-f]{1,16}|f{4,16}[0-9a-f]{0,12})\b")
_TRX = re.compile(
    r"\b(trx id(?: counter)?|Trx id counter|n:o(?: <)?|with id >=|sees <) [0-9A-F]{1,20}\b"
)
_MUTEX = re.compile(r"\bMutex [A-Z][A-Z0-9_]{1,60} created\b")
_WORD = re.compile(r"[A-Za-z][A-Za-z_]*(?:-[Ii]nc\b)?")
_PLAIN = re.compile(r"[\w\s.,:;/%()\[\]+*<>=&#'-]*")
_DIGITS = re.compile(r"\d{21,}")


def redact(text: str, normalize: Callable[[str], Statement]) -> str:
    """Return the report as it may be stored.

    ``normalize`` is stallscope.server.statements.normalize for the server's SQL modes.
    """
    return "\n".join(_Redaction(text.splitlines(), normalize).lines()) + "\n"


class _Redaction:
    def __init__(self, lines: list[str], normalize: Callable[[str], Statement]) -> None:
        self._lines = lines
        self._normalize = normalize
        self._statements = 0
        self._left_out = 0

    def lines(self) -> Iterator[str]:
        at = 0
        while at < len(self._lines):
            kept = self._kept(at)
            if kept is None:
                self._left_out += 1
            else:
                yield from self._count()
                yield clean(kept)
            if kept is not None and _CONNECTION.match(kept):
                end = self._end_of_statement(at + 1)
                yield from self._statement(at + 1, end)
                at = end
            else:
                at += 1
        yield from self._count()

    def _count(self) -> Iterator[str]:
        """Yield lines that say how many lines were left out here."""
        count, self._left_out = self._left_out, 0
        if count:
            yield f"<left out: {count} line{'s' * (count > 1)}>"

    def _end_of_statement(self, at: int) -> int:
        while at < len(self._lines) and not self._is_mark(at):
            at += 1
        return at

    def _is_mark(self, at: int) -> bool:
        line = self._lines[at]
        if _RULE.match(line):
            after = self._lines[at + 1] if at + 1 < len(self._lines) else ""
            return after.strip() in _TITLES or after.startswith("---TRANSACTION ")
        return _MARK.match(line) is not None

    def _statement(self, begin: int, end: int) -> Iterator[str]:
        text = "\n".join(self._lines[begin:end]).strip()
        if not text:
            return
        self._statements += 1
        if self._statements > MAX_STATEMENTS:
            self._left_out += 1
            return
        yield self._normalize(text).text

    def _kept(self, at: int) -> str | None:
        """Return a line without data, None where it must not be shown."""
        line = self._lines[at]
        if not line.strip() or _RULE.match(line) or _STAMP.match(line):
            return line[:_MAX_LINE]
        if len(line) > _MAX_LINE:
            return None
        if _CONNECTION.match(line) or line.strip() in _TITLES:
            return line
        for pattern in (_TRANSACTION, _LOCK):
            if match := pattern.match(line):
                more = match["more"]
                return line if not more or _is_known(more) else line[: match.start("more")] + "…"
        return line if not _RECORD.match(line) and _is_known(line) else None


def _is_known(text: str) -> bool:
    """Return whether InnoDB prints this: its own words, numbers, places and locks of its source."""
    rest = _MUTEX.sub("mutex", _PLACE.sub("file", _QUOTED.sub("lock", text)))
    rest = _TRX.sub("trx", _HEX.sub("", rest))
    words = _WORD.findall(rest)
    return (
        bool(words)
        and _PLAIN.fullmatch(rest) is not None
        and _DIGITS.search(rest) is None
        and all(word.lower() in _KNOWN for word in words)
    )

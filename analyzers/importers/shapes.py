# SPDX-License-Identifier: Apache-2.0
"""What lines of dumps look like, of any format: to find damage, and lines that nobody read."""

from __future__ import annotations

import re
from typing import NamedTuple

from stallscope.base.text import one_line

__all__ = ["MAX_SHOWN", "Left", "begins", "heads", "is_dump_line", "left", "number_of_lines"]

MAX_SHOWN = 160
"""Characters of an unreadable line that are kept."""
_LONGEST = 2000
"""Characters of a line that are checked."""

_HEAD = (
    r"Thread ?\#?\d{1,9} \(",
    r"TID \d{1,9}:",
    r"PID \d{1,9} - (?:process|core)",
    r"\s{0,8}(?:\* )?thread \#\d{1,7}",
    r"--Thread \d{1,20} has waited",
    r"---TRANSACTION \S",
    r"\s{0,20}Stack trace of thread \d{1,9}:",
    r"\s{0,8}\d{1,7} threads? with (?:the following )?stack trace",
    r'"[^"\n]{1,400}" (?:\#\d|daemon|prio=|\[\d)',
)
_FRAME = (
    r"\#\d{1,4}\s+(?:0x[0-9a-f]{1,16}\b|<signal handler|\S*[\w>)\]~*](?:$|\s+\(| at \S| from /))",
    r"\s{0,20}\#\d{1,4}\s*0x[0-9a-f]{16} \S+ \(\S+ \+ 0x",
    r"\s{0,8}(?:\* )?frame \#\d{1,5}: 0x",
    r"\s{0,12}\d{1,7}\s{1,4}[A-Za-z_~?:<(][^;\s,]{0,400},[\w~?:<(.,]",
    r"[^\s;][^;\n]{0,500};[^\s;][^\n]{0,1400} \d{1,15}$",
    r"\s{1,8}at [\w.$/@]{1,400}\(",
    r"(?:Mutex at 0x|(?:S|X|SX)-lock (?:\(wait_ex\) )?on RW-latch at )",
    r"(?:RECORD LOCKS space|TABLE LOCK table)",
    r"(?:MySQL|MariaDB) thread id \d",
    r"\s{1,16}[0-9a-f]{8,16} \S{1,400} \(\S+\)$",
    r"\|\s{0,10}\d{1,12} \|",
    r"\s{0,12}Id: \d{1,12}$",
)
_DAMAGED = (
    r'\{"log": ?"',
    r"\\?\#\d{1,4}(?=[A-Za-z_~<]|\s{1,8}\S)",
    r"(?:\d{1,4}[ \t]{1,3})?0x[0-9a-f]{6,16} in(?: \S|$)",
    r"\s{0,12}\d{1,7}[A-Za-z_~][\w:~@.?]{2,400}(?:\([^()\s]{0,200}\))?,[A-Za-z_~?:.]",
)
"""Lines of a dump that have yet to be repaired."""
_HEADS = re.compile(rf"^(?:{'|'.join(_HEAD)})", re.M)
_DUMP_LINE = re.compile("|".join((*_HEAD, *_FRAME, *_DAMAGED)))
_NAME = r"[A-Za-z_~][\w$~]*(?:::~?[\w$~]+|<[^<>\n]{0,200}>)*"
_LOST = re.compile(
    "|".join(
        (
            *_HEAD,
            # With blanks before it, and with fewer signs of what it was.
            r"\s{0,40}\#\d{1,4}\s{0,4}(?:0x[0-9a-f]{1,16}\b|<signal|[\w:~<(]{0,400}(?:_|::|\())",
            r"\s{0,40}Thread ?\#?\d{1,9} \((?:Thread 0x|LWP|process)",
            *_FRAME[1:10],
            r"\s{0,8}(?=\S{0,400}_)[\w:~@.<>()*&-]{1,400},[\w:~@.<>()*&-]{1,400}"
            r",[\w:~@.<>()*&,\- ]{3,}$",
            # Behind something that stayed.
            r".{0,200}?(?:--Thread \d{1,20} has waited at|RECORD LOCKS space id"
            r"|\#\d{1,4}\s{1,4}0x[0-9a-f]{6,16} in \S)",
            r"(?=\S{0,400}_)[^\s;]{1,400};[^\s;]{1,400};[^\s;]",
        )
    )
)
_WEAK = re.compile(
    r"\s{0,8}0x[0-9a-f]{6,16} (?:in )?[\w:~<?]"
    rf"|\s{{0,8}}(?=\S*(?:_|::)){_NAME} ?\([^()\n]{{0,400}}\)"
    r"(?: (?:at|from) \S+)?\s{0,8}$"
)
"""One such line is where a debugger says at what function the program is."""


_COUNTED = "\n"


_DETAIL = re.compile(
    r"RECORD LOCKS |TABLE LOCK |Last time |Holder thread |a writer \(thread|-{5,40} TRX HAS BEEN"
    r"|InnoDB: |\*\*\* |TRANSACTION \d"
)
_HASH_LOST = re.compile(r"\d{1,4}[ \t]{1,3}[A-Za-z_~<][^,;\n]{2,200} (?:\(|at /)")
_PLAIN = re.compile(
    r"number of readers |waiters flag |Record lock, |---|mysql tables in use|LOCK WAIT |ROLLING "
    r"|undo log |Trx read view|OS WAIT ARRAY|Spin rounds|RW-|Mutex spin|wait (?:has|is) |lock_word"
    r"|\d{1,9} (?:row )?lock |No (?:locals|symbol table|arguments)\b|Process \d|=====|\(gdb\)"
    r"|\s{0,40}\\?\#?\d{1,4}[ \t]{0,4}0x[0-9a-f]{6,16} "
)
_FOLLOWED = ("MySQL thread", "MariaDB thread", '"', "|")
"""Starts of lines that others follow, and that are not wrapped."""


class Left(NamedTuple):
    """What no format has read. ``lines``: all of them; ``first``: the first unreadable one."""

    lines: int
    unreadable: int
    first: str | None


def number_of_lines(text: str) -> int:
    """Return the number of lines; the last one can be without end."""
    return text.count("\n") + (bool(text) and not text.endswith("\n"))


def heads(text: str) -> int:
    """Return how many lines are where a thread begins."""
    return sum(1 for _ in _HEADS.finditer(text))


def is_dump_line(line: str) -> bool:
    """Return whether it is a frame, a head or a wait as tools print them, from its first column."""
    return _DUMP_LINE.match(line[:_LONGEST]) is not None


def begins(line: str) -> bool | None:
    """Return whether what is wrapped can start with this line; None: it does not, and this line is
    no rest of another."""
    if is_dump_line(line):
        return None if line.startswith(_FOLLOWED) else True
    if _DETAIL.match(line) or _HASH_LOST.match(line):
        return True
    return None if _PLAIN.match(line) else False


def left(text: str) -> Left:
    """Count the lines that no format has read, and those of them that look like a dump's."""
    unreadable = 0
    first: str | None = None
    weak = ""
    for line in filter(None, text.split("\n") if text.strip() else ()):
        if _LOST.match(line[:_LONGEST]):
            unreadable += 1
            weak = ""
        elif _WEAK.match(line[:_LONGEST]):
            if not weak:
                weak = line
                continue
            unreadable += 2 if weak != _COUNTED else 1
            line, weak = weak if weak != _COUNTED else line, _COUNTED
        else:
            weak = ""
            continue
        if first is None:
            first = one_line(line[: 4 * MAX_SHOWN], MAX_SHOWN)
    return Left(number_of_lines(text), unreadable, first)

# SPDX-License-Identifier: Apache-2.0
"""Find where a server keeps a connection, by what the server says of several.

A thread of a connection has a pointer to the connection's object (MySQL and MariaDB call it THD) at
a fixed distance from its thread control block: in a thread-local variable, in a pthread-specific
value, or at the outer end of its stack. A place, or an offset in the object, is taken where it is
right for each of our own connections, which differ on purpose, and wrong for no other one.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from stallscope.collectors.calibration.clocks import CLOCKS, When
from stallscope.collectors.calibration.memory import MemoryThread, Piece
from stallscope.collectors.sql.staged import Known

__all__ = [
    "LEAST",
    "MOST_PLACES",
    "OBJECT",
    "Found",
    "Reader",
    "Subject",
    "find",
    "find_idle",
    "is_pointer",
    "key_of",
    "starts_of",
    "with_transactions",
    "words_of",
]

BELOW, ABOVE = 16 << 10, 0x900
"""Bytes that are searched below and above the thread control block: thread-local variables and the
outer end of the stack; pthread-specific values."""
OBJECT = 32 << 10
"""The largest object."""
_TEXT_WITHIN = 4 << 10
"""The statement is within the first bytes of the object."""
LEAST = 3
"""Connections of our own that are needed."""
LEAST_IDS = 2
"""Transactions with different ids that are needed."""
_TRANSACTION = 4 << 10
"""Bytes of an object that are searched for the id of a transaction, and for its connection."""
_HEAD = 64
_TWO_STEPS = 2
_CHUNK = 32
_TEXT = 256
"""The most bytes of a text that are compared."""
_PSI = 1 << 10
"""Bytes of a second object that are searched for the last statement."""
MOST_PLACES = 3
"""Offsets of one field that are kept: all that are right."""

_COMMANDS = {"Sleep": 0, "Query": 3, "Execute": 23}
"""Numbers of the protocol's commands that our own connections are in."""
_AUTOCOMMIT, _IN_TRANSACTION = 2, 1
_OTHER_STATUS = 16 | 32 | 512 | 2048 | 8192 | 16384
"""SERVER_STATUS_AUTOCOMMIT, SERVER_STATUS_IN_TRANS, and other bits that a connection without a
statement can have (mysql_com.h)."""
_BEGUN_US = 1000
"""Between two clock reads at the start of a statement."""
_LEAST_IDLE = 0.8
"""The least share of idle connections for which the place of their time must be right."""


class Reader(Protocol):
    """The part of stallscope.collectors.calibration.memory.Memory that a search needs."""

    @property
    def threads(self) -> Sequence[MemoryThread]: ...
    def read(self, pieces: Sequence[Piece]) -> list[bytes]: ...


class Subject(msgspec.Struct, frozen=True):
    """A connection and its thread."""

    known: Known
    thread: MemoryThread


class Found(msgspec.Struct, frozen=True):
    """``layout``: keys for the probe (docs/calibration.md). ``unknown``: fields that were not
    found, or of which several places disagree."""

    layout: dict[str, int]
    unknown: tuple[str, ...]


def find(
    memory: Reader,
    subjects: Sequence[Subject],
    hints: Mapping[str, Sequence[int]],
) -> Found | None:
    """Return the layout; None where no place is right for all subjects. The transaction's id is
    unknown until ``with_transactions``.

    ``subjects``: our own connections, among them two that run statements. ``hints``: offsets by
    field that debug information gives; of several right offsets they are taken first.
    """
    running = [subject for subject in subjects if subject.known.statement]
    if len(running) < 2 or len(subjects) < LEAST:
        return None
    for place, query in _places(memory, subjects, running):
        objects = _objects(memory, subjects, place)
        found = _Fields(memory, subjects, objects, hints)
        if found.self and found.ids:
            return found.result(place, query)
    return None


def starts_of(memory: Reader, threads: Sequence[MemoryThread], place: int) -> list[int]:
    """Return where the objects of these threads begin, 0 where there is none; ``place`` is
    ``thd.tls``."""
    pointers = memory.read([(thread.fs_base + place, 8) for thread in threads])
    return [int.from_bytes(pointer, "little") for pointer in pointers]


def words_of(data: bytes) -> array[int]:
    """Return the whole words of 8 bytes."""
    words = array("Q")
    words.frombytes(data[: len(data) & ~7])
    return words


def is_pointer(word: int) -> bool:
    """Return whether a word can be an address of a program."""
    return 0x10000 <= word < 1 << 47


def _places(
    memory: Reader, subjects: Sequence[Subject], running: Sequence[Subject]
) -> Iterable[tuple[int, int]]:
    """Yield a place and the offset of the statement, the nearest to the control block first."""
    blocks = {
        subject.thread.tid: words_of(data)
        for subject, data in zip(
            subjects,
            memory.read([(s.thread.fs_base - BELOW, BELOW + ABOVE) for s in subjects]),
            strict=True,
        )
    }
    length = min(map(len, blocks.values()))
    candidates = []
    for index in range(length):
        words = {block[index] for block in blocks.values()}
        if len(words) == len(blocks) and all(is_pointer(w) and not w & 7 for w in words):
            candidates.append(index)
    candidates.sort(key=lambda index: abs(8 * index - BELOW))
    for begin in range(0, len(candidates), _CHUNK):
        chunk = candidates[begin : begin + _CHUNK]
        for index, query in _with_statement(memory, blocks, chunk, running):
            yield 8 * index - BELOW, query


def _with_statement(
    memory: Reader,
    blocks: Mapping[int, array[int]],
    candidates: Sequence[int],
    running: Sequence[Subject],
) -> list[tuple[int, int]]:
    """Return the candidates whose objects have the statements, with offsets: pointer and length."""
    objects = [
        list(
            map(
                words_of,
                memory.read([(blocks[s.thread.tid][index], _TEXT_WITHIN) for index in candidates]),
            )
        )
        for s in running
    ]
    left = [
        (number, at)
        for number in range(len(candidates))
        for at in range(min(len(objects_of[number]) for objects_of in objects) - 1)
        if all(is_pointer(objects_of[number][at]) for objects_of in objects)
    ]
    for subject, objects_of in zip(running, objects, strict=True):
        text = (subject.known.statement or "").encode()
        left = [
            (number, at)
            for number, at in left
            if objects_of[number][at + 1] & 0xFFFFFFFF == len(text)
        ]
        texts = memory.read([(objects_of[number][at], len(text)) for number, at in left])
        left = [place for place, found in zip(left, texts, strict=True) if found == text]
    return [(candidates[number], 8 * at) for number, at in left]


def with_transactions(
    memory: Reader, found: Found, transactions: Sequence[tuple[MemoryThread, int]]
) -> Found:
    """Add where the id of a transaction is: in an object that the connection's points to, or in
    one further. ``transactions``: threads with the ids of theirs."""
    ids = [id_ for _, id_ in transactions]
    others = tuple(field for field in found.unknown if field != "transaction_id")
    unknown = Found(found.layout, (*others, "transaction_id"))
    if len(set(ids)) < LEAST_IDS:
        return unknown
    starts = starts_of(memory, [thread for thread, _ in transactions], found.layout["thd.tls"])
    objects = [words_of(data) for data in memory.read([(start, OBJECT) for start in starts])]
    paths: list[tuple[int, ...]] = [
        (at,)
        for at in range(min(map(len, objects)))
        if all(is_pointer(words[at]) and not words[at] & 7 for words in objects)
        and len({words[at] for words in objects}) == len(objects)
    ]
    for steps in (1, 2):
        ends = [[words[path[0]] for path in paths] for words in objects]
        if steps == _TWO_STEPS:
            paths, ends = _further(memory, paths, ends)
        pieces = [memory.read([(end, _TRANSACTION) for end in ends_of]) for ends_of in ends]
        for number, path in enumerate(paths):
            offset = _same([words_of(pieces_of[number]) for pieces_of in pieces], ids)
            if offset is not None:
                more = {"thd.trx": 8 * path[0], "thd.trx#id": offset}
                back = _same([words_of(pieces_of[number]) for pieces_of in pieces], starts)
                if back is not None:
                    more["trx_t.mysql_thd"] = back
                if len(path) == _TWO_STEPS:
                    more["thd.trx.1"] = 8 * path[1]
                return Found(found.layout | more, others)
    return unknown


def find_idle(
    memory: Reader,
    layout: Mapping[str, int],
    idle: Sequence[tuple[MemoryThread, tuple[int, int]]],
) -> dict[str, int]:
    """Return where an idle connection has the time from which the server counts; nothing where that
    is the start of its last statement.

    It is right where the later one of it and the start is what the server says, for all of them: a
    command that is no statement has a start alone. ``idle``: threads, and the earliest and latest
    moment in nanoseconds of CLOCK_MONOTONIC.
    """
    starts = starts_of(memory, [thread for thread, _ in idle], layout["thd.tls"])
    objects = [words_of(data) for data in memory.read([(start, OBJECT) for start in starts])]
    if "thd.start" not in layout or not objects or not (size := min(map(len, objects))):
        return {}
    at, start = layout["thd.start"] // 8, CLOCKS[layout["thd.start#clock"]]
    known = [
        (words, moments, begun)
        for words, (_, moments) in zip(objects, idle, strict=True)
        # Some have begun a statement since they were listed.
        if (begun := start.when(words, at, moments)) is not When.AFTER
    ]
    others = [one for one in known if one[2] is When.BEFORE]
    found: Counter[tuple[int, int]] = Counter()
    for clock in CLOCKS:
        for words, moments, _ in others:
            within = clock.within(words[:size], clock.window(moments))
            found.update((clock.number, index) for index in within)

    def right(place: tuple[int, int]) -> int:
        """Return for how many the later one of both is what the server says."""
        number, index = place
        count = 0
        for words, moments, begun in known:
            both = {begun, CLOCKS[number].when(words, index, moments)}
            count += When.WITHIN in both and When.AFTER not in both
        return count

    # Some have sent a command that is no statement since.
    fit = [place for place, count in found.items() if count >= _LEAST_IDLE * len(others)]
    best = max(fit, key=right, default=None)
    if best is None or right(best) < _LEAST_IDLE * len(known):
        return {}
    return {"thd.idle": 8 * best[1], "thd.idle#clock": best[0]}


def _further(
    memory: Reader, paths: Sequence[tuple[int, ...]], ends: Sequence[Sequence[int]]
) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """Follow the first pointers of each object, too."""
    further: list[tuple[int, ...]] = []
    found: list[list[int]] = [[] for _ in ends]
    heads = [
        [words_of(data) for data in memory.read([(end, _HEAD) for end in ends_of])]
        for ends_of in ends
    ]
    for number, path in enumerate(paths):
        words = [heads_of[number] for heads_of in heads]
        for at in range(min(map(len, words))):
            values = [head[at] for head in words]
            if all(map(is_pointer, values)) and len(set(values)) == len(values):
                further.append((*path, at))
                for column, value in zip(found, values, strict=True):
                    column.append(value)
    return further, found


def _same(objects: Sequence[array[int]], values: Sequence[int]) -> int | None:
    """Return the first offset at which each object has its value."""
    for at in range(min(map(len, objects))):
        if all(words[at] == value for words, value in zip(objects, values, strict=True)):
            return 8 * at
    return None


def _objects(memory: Reader, subjects: Sequence[Subject], place: int) -> list[bytes]:
    starts = starts_of(memory, [subject.thread for subject in subjects], place)
    return memory.read([(start, OBJECT) for start in starts])


class _Fields:
    """The fields of an object that are right for all subjects."""

    def __init__(
        self,
        memory: Reader,
        subjects: Sequence[Subject],
        objects: Sequence[bytes],
        hints: Mapping[str, Sequence[int]],
    ) -> None:
        self._memory = memory
        self._subjects = subjects
        self._known = [subject.known for subject in subjects]
        self._hints = hints
        self._found: dict[str, int] = {}
        size = min(map(len, objects)) & ~7
        self._words = [words_of(data[:size]) for data in objects]
        self._halves = [array("I", data[:size]) for data in objects]
        self._pointers = sorted(
            {at for words in self._words for at, word in enumerate(words) if is_pointer(word)}
        )
        self._texts = self._read_texts()
        self.self = self._ordered(
            "self", self._where(self._words, 8, [subject.thread.fs_base for subject in subjects])
        )
        self.ids = self._ordered(
            "id", self._where(self._halves, 4, [known.connection for known in self._known])
        )

    def result(self, place: int, query: int) -> Found:
        """Return all that was found."""
        layout = {"thd.tls": place, "thd.query": query}
        for number, offset in enumerate(self.self[:MOST_PLACES], 1):
            layout[key_of("self", number)] = offset
        unknown = []
        for number, offset in enumerate(self.ids[:MOST_PLACES], 1):
            layout[key_of("id", number)] = offset
        for field in ("user", "host", "database", "state"):
            found = self._text_places(field)
            if not found:
                unknown.append(field)
            for number, (offset, counted) in enumerate(found[:MOST_PLACES], 1):
                layout[key_of(field, number)] = offset
                if counted:
                    layout[f"{key_of(field, number)}#length"] = offset + 8
        for field, offsets in (("command", self._commands()), ("status", self._statuses())):
            if len(offsets) == 1:
                layout[f"thd.{field}"] = offsets[0]
            else:
                unknown.append(field)
        for search in (self._start, self._last):
            more = search()
            self._found |= more
            layout |= more
            if not more:
                unknown.append(search.__name__.strip("_"))
        return Found(layout, (*unknown, "transaction_id"))

    def _ordered(self, field: str, offsets: list[int]) -> list[int]:
        hints = self._hints.get(field, ())
        return sorted(offsets, key=lambda offset: (offset not in hints, offset))

    def _where(self, columns: Sequence[array[int]], size: int, values: Sequence[int]) -> list[int]:
        """Return the offsets at which each object has its value."""
        first = columns[0]
        found = []
        at = -1
        for _ in range(first.count(values[0])):
            at = first.index(values[0], at + 1)
            if all(column[at] == value for column, value in zip(columns, values, strict=True)):
                found.append(size * at)
        return found

    def _commands(self) -> list[int]:
        wanted = [_COMMANDS.get(known.command or "Sleep", -1) for known in self._known]
        return self._ordered("command", self._where(self._halves, 4, wanted))

    def _statuses(self) -> list[int]:
        """The bits of the protocol's server status: whether a transaction is open."""
        flags = [known.transaction for known in self._known]
        if len(set(flags)) < 2:
            return []
        places: Sequence[int] = range(len(self._halves[0]))
        for halves, flag in zip(self._halves, flags, strict=True):
            wanted = _AUTOCOMMIT | _IN_TRANSACTION if flag else _AUTOCOMMIT
            places = [at for at in places if halves[at] & ~_OTHER_STATUS == wanted]
        return self._ordered("status", [4 * at for at in places])

    def _start(self) -> dict[str, int]:
        """The start of the statement in microseconds: the first place, as later ones are of when it
        had its locks."""
        begun = [
            (words, known.begun)
            for words, known in zip(self._words, self._known, strict=True)
            if known.begun
        ]
        hints = self._hints.get("start", ())
        first: dict[str, int] = {}
        for clock in CLOCKS:
            places = [set(clock.within(words, clock.window(moments))) for words, moments in begun]
            found = [8 * at for at in sorted(set.intersection(*places))] if places else []
            if found:
                start = self._ordered("start", found)[0]
                here = {"thd.start": start, "thd.start#clock": clock.number}
                if start in hints:
                    return here
                first = first or here
        return first

    def _read_texts(self) -> list[dict[int, bytes]]:
        found = []
        for words in self._words:
            at = [index for index in self._pointers if is_pointer(words[index])]
            texts = self._memory.read([(words[index], _TEXT) for index in at])
            found.append(dict(zip(at, texts, strict=True)))
        return found

    def _text_places(self, field: str) -> list[tuple[int, bool]]:
        """Return offsets of pointers to the texts, and whether a length follows the pointer.

        Where two subjects have different texts, or one has none, copies of another field fail.
        """
        values: list[bytes | None] = [_value(getattr(known, field)) for known in self._known]
        if field == "state":  # an idle connection may still have the last one
            values = [
                None if known.command == "Sleep" else value
                for known, value in zip(self._known, values, strict=True)
            ]
        found = [
            (8 * at, counted)
            for at in self._pointers
            if (counted := self._text_at(at, values)) is not None
        ]
        hints = self._hints.get(field, ())
        return sorted(found, key=lambda place: (place[0] not in hints, place[0]))

    def _text_at(self, at: int, values: Sequence[bytes | None]) -> bool | None:
        """Return whether a length follows the pointer; None where a text is another one. A value
        that is None can be anything."""
        compared = [
            (texts.get(at), words, value)
            for texts, words, value in zip(self._texts, self._words, values, strict=True)
            if value is not None
        ]
        if not any(value for *_, value in compared) or at + 1 >= len(self._words[0]):
            return None
        counted = all(
            words[at + 1] & 0xFFFFFFFF == len(value) or not words[at]
            for _, words, value in compared
        )
        for text, words, value in compared:
            if text is None:
                if words[at] or value:
                    return None
            elif not (counted and text.startswith(value)) and not text.startswith(value + b"\0"):
                return None
        return counted

    def _last(self) -> dict[str, int]:
        """The text of the last statement of an idle connection: in the memory that it was read
        into, or in performance_schema's object of the thread."""
        idle = [i for i, known in enumerate(self._known) if known.last]
        if len(idle) < 2:
            return {}
        wanted = [(self._known[i].last or "").encode() for i in idle]
        return self._last_counted(idle, wanted) or self._last_kept(idle, wanted)

    def _last_kept(self, idle: Sequence[int], wanted: Sequence[bytes]) -> dict[str, int]:
        for at in self._pointers:
            deltas = {
                self._texts[i].get(at, b"").find(text[: _TEXT // 2])
                for i, text in zip(idle, wanted, strict=True)
            }
            (delta, *others) = deltas
            if others or not 0 <= delta <= _TEXT // 4:
                continue
            starts = [
                (self._words[i][at] + delta, len(text) + 1)
                for i, text in zip(idle, wanted, strict=True)
            ]
            if self._memory.read(starts) == [text + b"\0" for text in wanted]:
                return {"thd.last": 8 * at, "thd.last#delta": delta}
        return {}

    def _last_counted(self, idle: Sequence[int], wanted: Sequence[bytes]) -> dict[str, int]:
        first = idle[0]
        at = [
            index
            for index in self._pointers
            if all(is_pointer(self._words[i][index]) for i in idle)
        ]
        objects = self._memory.read([(self._words[first][index], _PSI) for index in at])
        candidates = [
            (index, second)
            for index, data in zip(at, objects, strict=True)
            for second in _counted(data, len(wanted[0]))
        ]
        for i, text in zip(idle, wanted, strict=True):
            pieces = self._memory.read(
                [(self._words[i][index] + second, 12) for index, second in candidates]
            )
            left = [
                (place, *struct.unpack("<QI", piece))
                for place, piece in zip(candidates, pieces, strict=True)
                if len(piece) == 12
            ]
            left = [one for one in left if is_pointer(one[1]) and one[2] == len(text)]
            texts = self._memory.read([(pointer, len(text)) for _, pointer, _ in left])
            candidates = [
                place for (place, *_), found in zip(left, texts, strict=True) if found == text
            ]
        begun = self._last_begun(idle)
        for index, second in candidates:
            starts = [(self._words[i][index], _PSI) for i in idle]
            seconds = [words_of(data) for data in self._memory.read(starts)]
            for word in begun:
                same = _same(seconds, [self._words[i][word] for i in idle])
                if same is not None:
                    return {
                        "thd.last": 8 * index,
                        "thd.last.1": second,
                        "thd.last#length": second + 8,
                        "thd.last#begun": 8 * word,
                        "thd.last.1#begun": same,
                    }
        return {}

    def _last_begun(self, idle: Sequence[int]) -> list[int]:
        """Return where the time can be at which performance_schema saw the last statement begin.

        Its object of the statement has the same. Until a connection has run one, it can have the
        pointer and the time of the connection that had its memory before.
        """
        start = self._found.get("thd.start")
        if start is None or CLOCKS[self._found["thd.start#clock"]].seconds:
            return []
        places: Sequence[int] = range(len(self._words[0]))
        for i in idle:
            words, us = self._words[i], self._words[i][start // 8]
            places = [at for at in places if abs(words[at] // 1000 - us) <= _BEGUN_US]
        return list(places)


def _counted(data: bytes, length: int) -> Iterable[int]:
    """Yield where a pointer is that this length follows."""
    wanted = length.to_bytes(4, "little")
    at = data.find(wanted)
    while at >= 0:
        if at % 8 == 0 and at and is_pointer(int.from_bytes(data[at - 8 : at], "little")):
            yield at - 8
        at = data.find(wanted, at + 1)


def _value(text: str | None) -> bytes:
    return (text or "").encode()[: _TEXT - 1]


def key_of(field: str, number: int) -> str:
    """Return the key of a field's place, of which there are up to MOST_PLACES."""
    return f"thd.{field}" if number == 1 else f"thd.{field}.{number}"

# SPDX-License-Identifier: Apache-2.0
"""Find where a server keeps its metadata locks: one of our own connections waits for a lock that
another one of them has, as GET_LOCK() makes metadata locks from MySQL 5.7 and MariaDB 10.0 on.

Each connection's object has a context, with lists of the tickets of its locks, and a pointer to the
ticket that it waits for. A ticket has its context, its lock, and its type."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from stallscope.collectors.calibration.memory import MemoryThread
from stallscope.collectors.calibration.search import OBJECT, Reader, is_pointer, starts_of, words_of

__all__ = ["Locker", "find", "lockers"]

_TICKET = 128
_LOCK = 2 << 10
_FARTHEST = 1 << 10
"""Of the pointer to the awaited ticket from the beginning of the context."""
_MOST_TYPE = 64
_LEAST_KEY = 2
_LISTS = 3
"""Of locks for the statement, for the transaction, and until they are given back."""


class Locker(msgspec.Struct, frozen=True):
    """A connection: where its object is, and the object."""

    start: int
    data: bytes


def lockers(memory: Reader, threads: Sequence[MemoryThread], place: int) -> list[Locker]:
    """Return the objects of these threads; ``place`` is ``thd.tls``."""
    starts = starts_of(memory, threads, place)
    objects = memory.read([(start, OBJECT) for start in starts])
    return [Locker(start, data) for start, data in zip(starts, objects, strict=True)]


class _Ticket(msgspec.Struct, frozen=True):
    address: int
    words: array[int]


def find(
    memory: Reader, owner: Locker, waiter: Locker, others: Sequence[Locker], name: str
) -> dict[str, int]:
    """Return keys of the layout; none where nothing fits.

    ``owner`` has the lock ``name``, and ``waiter`` waits for it; ``others`` wait for no lock.
    """
    for offset, ticket in _awaited(memory, waiter, (owner, *others)):
        for at, word in enumerate(ticket.words):
            context = word - waiter.start
            if 0 < offset - context <= _FARTHEST and not context & 7 and context >= 0:
                found = _with_context(memory, owner, ticket, at, context, offset)
                if found:
                    named = _name(memory, ticket.words[found["MDL_ticket.m_lock"] // 8], name)
                    return found | named if named else {}
    return {}


def _awaited(
    memory: Reader, waiter: Locker, others: Sequence[Locker]
) -> Iterator[tuple[int, _Ticket]]:
    """Yield pointers that only the waiter has, and what they point to."""
    mine = words_of(waiter.data)
    theirs = [words_of(other.data) for other in others]
    length = min([len(mine), *map(len, theirs)])
    places = [
        at
        for at in range(length)
        if is_pointer(mine[at]) and not any(column[at] for column in theirs)
    ]
    pieces = memory.read([(mine[at], _TICKET) for at in places])
    for at, piece in zip(places, pieces, strict=True):
        yield 8 * at, _Ticket(mine[at], words_of(piece))


def _with_context(
    memory: Reader, owner: Locker, awaited: _Ticket, at: int, context: int, waiting: int
) -> dict[str, int]:
    """Find the owner's ticket of the same lock in the lists of its context."""
    column = words_of(owner.data)
    heads = [
        index
        for index in range(context // 8, min(waiting // 8, len(column)))
        if is_pointer(column[index])
    ]
    tickets = [
        _Ticket(column[head], words_of(piece))
        for head, piece in zip(
            heads, memory.read([(column[head], _TICKET) for head in heads]), strict=True
        )
    ]
    # The first ticket of a list points back to the list.
    lists = [
        (8 * head, ticket, back)
        for head, ticket in zip(heads, tickets, strict=True)
        if at < len(ticket.words)
        and ticket.words[at] == owner.start + context
        and (back := _index(ticket, owner.start + 8 * head)) is not None
    ]
    for head, ticket, back in lists:
        lock = _same_lock(awaited, ticket, at)
        exclusive = ticket.words[at - 1] & 0xFFFFFFFF
        same = awaited.words[at - 1] & 0xFFFFFFFF == exclusive
        if lock is None or not same or not 0 < exclusive < _MOST_TYPE:
            continue
        found = {
            "THD.mdl_context": context,
            "MDL_context.m_waiting_for": waiting - context,
            "MDL_ticket.m_ctx": 8 * at,
            "MDL_ticket.m_lock": 8 * lock,
            "MDL_ticket.m_type": 8 * at - 8,
            "MDL_ticket.next_in_context": 8 * back - 8,
        }
        others = [one for one, *_ in lists if one != head]
        return found | _lists(head - context, [one - context for one in others])
    return {}


def _index(ticket: _Ticket, word: int) -> int | None:
    return ticket.words.index(word) if word in ticket.words else None


def _same_lock(awaited: _Ticket, ticket: _Ticket, at: int) -> int | None:
    for index, (one, other) in enumerate(zip(awaited.words, ticket.words, strict=False)):
        if index > at and one == other and is_pointer(one):
            return index
    return None


def _lists(explicit: int, others: Sequence[int]) -> dict[str, int]:
    """The lists are in a row, that of locks which are given back explicitly as the last one. Where
    the owner has a lock of its transaction, too, that shows how far they are apart."""
    apart = {explicit - other for other in others if other < explicit}
    if len(apart) != 1:
        return {}
    (step,) = apart
    return {
        "MDL_context.m_tickets": explicit - (_LISTS - 1) * step,
        "MDL_context.m_tickets#stride": step,
    }


def _name(memory: Reader, lock: int, name: str) -> dict[str, int]:
    """The key of a lock: a byte for the kind of object, a database, and a name, each ended by a
    zero. Of a user's lock one of the two is empty: in MySQL the database, in MariaDB the name."""
    (data,) = memory.read([(lock, _LOCK)])
    at = data.find(name.encode() + b"\0")
    if at < _LEAST_KEY:
        return {}
    return {"MDL_lock.key": 0, "MDL_key.m_ptr": at - 1 if data[at - 1] else at - 2}

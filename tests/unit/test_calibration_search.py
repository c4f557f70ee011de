# SPDX-License-Identifier: Apache-2.0
"""Connections are searched in the memory of a server made by hand."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import msgspec
import pytest

from stallscope.collectors.calibration import search
from stallscope.collectors.calibration.clocks import CLOCKS, Clock
from stallscope.collectors.calibration.memory import MemoryThread, Piece
from stallscope.collectors.calibration.search import ABOVE, BELOW, OBJECT, Found, Subject, find
from stallscope.collectors.sql.staged import Known

__all__: list[str] = []

FS_BASE, OBJECTS, TEXTS = 0x7F0000010000, 0x7F1000000000, 0x7F2000000000
PLACE, QUERY, SELF, ID, USER, HOST, DATABASE, STATE = -472, 96, 128, 512, 520, 536, 552, 568
COMMAND, STATUS, START, LAST, BEGUN_NS = 600, 608, 616, 640, 720
BEGUN = time.monotonic_ns() - 2_000_000_000

KNOWN = (
    Known(
        101,
        user="root",
        host="localhost",
        database="mysql",
        command="Sleep",
        last="/* x */ SELECT 'idle', 1",
        transaction=True,
        own=True,
    ),
    Known(
        102,
        user="root",
        host="localhost",
        command="Query",
        state="User sleep",
        statement="/* x */ SELECT 'sleeping', SLEEP(20)",
        begun=(BEGUN, BEGUN + 5_000_000),
        transaction=False,
        own=True,
    ),
    Known(
        103,
        user="root",
        host="localhost",
        database="test",
        command="Execute",
        state="User lock",
        statement="/* x */ SELECT 'waiting', GET_LOCK('a', 20)",
        begun=(BEGUN + 9_000_000, BEGUN + 12_000_000),
        transaction=False,
        own=True,
    ),
    Known(
        104,
        user="root",
        host="localhost",
        command="Sleep",
        last="/* x */ SELECT ID FROM PROCESSLIST",
        transaction=False,
        own=True,
    ),
)


class Server:
    """Four threads with a connection each, in memory that a search reads."""

    def __init__(self, known: Sequence[Known] = KNOWN) -> None:
        self.known = known
        self.threads = tuple(
            MemoryThread(tid=50 + i, ns_tid=50 + i, fs_base=FS_BASE + i * 0x100000)
            for i in range(len(known))
        )
        self.regions = {TEXTS: bytearray(1 << 20)}
        self.texts = 0x1000
        self.reads = 0
        for i, thread in enumerate(self.threads):
            self.regions[thread.fs_base - BELOW] = bytearray(BELOW + ABOVE)
            self.regions[self.object(i)] = bytearray(OBJECT)

    def object(self, i: int) -> int:
        return OBJECTS + i * 2 * OBJECT

    @property
    def subjects(self) -> list[Subject]:
        return [Subject(*pair) for pair in zip(self.known, self.threads, strict=True)]

    def put(self, address: int, data: bytes) -> None:
        for start, memory in self.regions.items():
            if start <= address < start + len(memory):
                memory[address - start : address - start + len(data)] = data
                return
        raise AssertionError(hex(address))

    def word(self, address: int, word: int, size: int = 8) -> None:
        self.put(address, word.to_bytes(size, "little"))

    def text(self, text: str) -> int:
        """Put a text somewhere; return its address."""
        data = text.encode() + b"\0"
        address = TEXTS + self.texts
        self.put(address, data)
        self.texts += len(data) + 8 & ~7
        return address

    def pointer(self, address: int, text: str | None, *, counted: bool = False) -> None:
        self.word(address, 0 if text is None else self.text(text))
        if counted:
            self.word(address + 8, len(text or ""))

    def each(self, offset: int, words: Sequence[int], size: int = 8) -> None:
        for i, word in enumerate(words):
            self.word(self.object(i) + offset, word, size)

    def read(self, pieces: Sequence[Piece]) -> list[bytes]:
        self.reads += 1
        return [self._read(*piece) for piece in pieces]

    def _read(self, address: int, size: int) -> bytes:
        for start, memory in self.regions.items():
            if start <= address < start + len(memory):
                return bytes(memory[address - start : address - start + size])
        return b""

    def place(self, place: int = PLACE, query: int = QUERY) -> None:
        """Have a place with objects that have the statements."""
        for i, (known, thread) in enumerate(zip(self.known, self.threads, strict=True)):
            self.word(thread.fs_base + place, self.object(i))
            self.pointer(self.object(i) + query, known.statement, counted=True)

    def identities(self) -> None:
        self.each(SELF, [thread.fs_base for thread in self.threads])
        self.each(ID, [known.connection for known in self.known], 4)

    def find(self) -> Found | None:
        return find(self, self.subjects, {})


def whole() -> Server:
    """Return a server with all fields at one place each."""
    server = Server()
    server.place()
    server.identities()
    ahead = CLOCKS[0].ahead_ns
    for i, known in enumerate(server.known):
        at = server.object(i)
        server.pointer(at + USER, known.user, counted=True)
        server.pointer(at + HOST, known.host)
        server.pointer(at + DATABASE, known.database, counted=True)
        server.pointer(at + STATE, known.state)
        server.word(at + COMMAND, {"Sleep": 0, "Query": 3, "Execute": 23}[known.command or ""], 4)
        server.word(at + STATUS, 3 if known.transaction else 2, 4)
        begun = known.begun or (0, 0)
        server.word(at + START, (sum(begun) // 2 + ahead) // 1000)
        server.pointer(at + LAST, f"0123456789abcde {known.last}")
    return server


WHOLE = {
    "thd.tls": PLACE,
    "thd.query": QUERY,
    "thd.self": SELF,
    "thd.id": ID,
    "thd.user": USER,
    "thd.user#length": USER + 8,
    "thd.host": HOST,
    "thd.database": DATABASE,
    "thd.database#length": DATABASE + 8,
    "thd.state": STATE,
    "thd.command": COMMAND,
    "thd.status": STATUS,
    "thd.start": START,
    "thd.start#clock": 0,
    "thd.last": LAST,
    "thd.last#delta": 16,
}


def test_all_fields_are_found_where_they_are() -> None:
    found = whole().find()
    assert found is not None
    assert found.layout == WHOLE
    assert found.unknown == ("transaction_id",)


def test_what_is_not_there_is_unknown() -> None:
    server = Server()
    server.place()
    server.identities()
    found = server.find()
    assert found is not None
    assert set(found.layout) == {"thd.tls", "thd.query", "thd.self", "thd.id"}
    assert found.unknown == (
        *("user", "host", "database", "state", "command", "status", "start", "last"),
        "transaction_id",
    )


def test_a_nearer_place_that_is_right_for_the_statements_alone_is_not_taken() -> None:
    """The parser's copy of the statement hangs nearer, and has no id; a copy of all of it with the
    pointers swapped is nearer, too."""
    server = whole()
    for i, (known, thread) in enumerate(zip(KNOWN, server.threads, strict=True)):
        parser = 0x7F3000000000 + i * OBJECT
        server.regions[parser] = bytearray(OBJECT)
        server.word(thread.fs_base - 16, parser)
        server.pointer(parser + 48, known.statement, counted=True)
        server.word(thread.fs_base - 24, server.object((i + 1) % 4))
    found = server.find()
    assert found is not None
    assert found.layout == WHOLE


def test_places_are_taken_only_where_they_are_right_for_all() -> None:
    server = whole()
    server.each(ID + 100, [101, 102, 103, 105], 4)
    server.each(SELF + 800, [thread.fs_base for thread in server.threads[:3]] + [FS_BASE])
    for i, known in enumerate(KNOWN):
        server.pointer(server.object(i) + 1000, known.user)  # another, without a length
        server.pointer(server.object(i) + 1100, "root" if i else "admin")
        server.pointer(server.object(i) + 1200, "root2")
        server.pointer(server.object(i) + 1300, known.host if i != 2 else None)
        server.pointer(server.object(i) + 1400, known.database or "mysql")
    found = server.find()
    assert found is not None
    assert found.layout == WHOLE | {"thd.user.2": 1000}


def test_of_many_right_places_three_are_taken_and_numbers_must_be_one() -> None:
    server = whole()
    for k in range(5):
        server.each(2000 + 4 * k, [known.connection for known in KNOWN], 4)
    server.each(2100, [0, 3, 23, 0], 4)
    server.each(2200, [3, 2, 2, 2], 4)
    found = server.find()
    assert found is not None
    assert [found.layout.get(f"thd.id.{k}") for k in (2, 3, 4)] == [2000, 2004, None]
    assert found.unknown == ("command", "status", "transaction_id")
    assert not {"thd.command", "thd.status"} & set(found.layout)


def test_hints_come_first_and_are_no_proof() -> None:
    server = whole()
    server.each(2000, [known.connection for known in KNOWN], 4)
    hints = {"id": (2000,), "user": (HOST,)}
    found = find(server, server.subjects, hints)
    assert found is not None
    assert (found.layout["thd.id"], found.layout["thd.id.2"]) == (2000, ID)
    assert found.layout["thd.user"] == USER


@pytest.mark.parametrize("clock", ["monotonic", "wrong"])
def test_the_start_is_of_a_clock_that_is_known(clock: str) -> None:
    server = whole()
    for i, known in enumerate(KNOWN):
        begun = sum(known.begun or (0, 0)) // 2000
        server.word(server.object(i) + START, begun if clock == "monotonic" else begun // 2)
    found = server.find()
    assert found is not None
    assert found.layout.get("thd.start#clock") == (1 if clock == "monotonic" else None)
    assert ("start" in found.unknown) == (clock == "wrong")


def test_a_pause_between_two_clocks_is_no_part_of_their_distance() -> None:
    pauses = iter([0.02])

    def now_ns() -> int:
        found = time.monotonic_ns() + 10**15
        time.sleep(next(pauses, 0))
        return found

    assert abs(Clock(0, now_ns).ahead_ns - 10**15) < 5_000_000


def with_second_objects(begun: bool = True) -> Server:
    """Have the last statements in objects of their own, with the time of their beginning."""
    server = whole()
    now = time.time_ns()
    for i, known in enumerate(KNOWN):
        second = 0x7F3000000000 + i * OBJECT
        server.regions[second] = bytearray(OBJECT)
        server.word(server.object(i) + LAST, second)
        server.word(second + 904, server.text(known.last or "none"))
        server.word(second + 912, len(known.last or "none"))
        if known.begun is None:
            server.word(server.object(i) + START, now // 1000 - 1_000_000 * i)
        server.word(server.object(i) + BEGUN_NS, now - 10**9 * i + 20_000)
        server.word(second + 96, now - 10**9 * i + (20_000 if begun else 30_000))
    return server


def test_the_last_statement_behind_a_second_object() -> None:
    found = with_second_objects().find()
    assert found is not None
    assert {k: v for k, v in found.layout.items() if k.startswith("thd.last")} == {
        "thd.last": LAST,
        "thd.last.1": 904,
        "thd.last#length": 912,
        "thd.last#begun": BEGUN_NS,
        "thd.last.1#begun": 96,
    }


def test_a_second_object_without_the_same_beginning_can_be_another_connection_s() -> None:
    found = with_second_objects(begun=False).find()
    assert found is not None
    assert not {k for k in found.layout if k.startswith("thd.last")}
    assert "last" in found.unknown


def same_statement(server: Server) -> None:
    text = server.text(KNOWN[1].statement or "")
    server.word(server.object(2) + QUERY, text)


def one_object(server: Server) -> None:
    for thread in server.threads:
        server.word(thread.fs_base + PLACE, server.object(1))


def unmapped(server: Server) -> None:
    for i in range(4):
        del server.regions[server.object(i)]


def no_blocks(server: Server) -> None:
    del server.regions[server.threads[2].fs_base - BELOW]


def no_identity(server: Server) -> None:
    server.each(SELF, [0] * 4)


def to_itself(server: Server) -> None:
    """All words of all objects point to their own object."""
    for i in range(4):
        at = server.object(i)
        server.put(at, struct.pack("<Q", at) * (OBJECT // 8))


def one_page(server: Server) -> None:
    """The objects end before their id."""
    for i in range(4):
        at = server.object(i)
        server.regions[at] = server.regions[at][: ID - 8]


@pytest.mark.parametrize(
    "damage",
    [same_statement, one_object, unmapped, no_blocks, no_identity, to_itself, one_page],
    ids=lambda damage: damage.__name__,
)
def test_a_server_that_does_not_fit_has_no_layout(damage: object) -> None:
    server = whole()
    assert callable(damage)
    damage(server)
    assert server.find() is None


def test_too_few_connections_are_no_proof() -> None:
    server = whole()
    assert find(server, server.subjects[:2], {}) is None
    idle = [
        Subject(msgspec.structs.replace(s.known, statement=None), s.thread) for s in server.subjects
    ]
    assert find(server, idle, {}) is None


def test_a_large_search_is_few_reads() -> None:
    """All words of the blocks are pointers, and all of the objects, too."""
    server = whole()
    for i, thread in enumerate(server.threads):
        at = server.object(i)
        words = [at + 8 * k % OBJECT for k in range((BELOW + ABOVE) // 8)]
        block = struct.pack(f"<{len(words)}Q", *words)
        server.put(thread.fs_base - BELOW, block)
        server.word(thread.fs_base + PLACE, at)
    begun = time.thread_time()
    found = server.find()
    assert found is not None
    assert found.layout["thd.tls"] == PLACE
    assert server.reads < 20 * (BELOW + ABOVE) // 8 // search._CHUNK
    assert time.thread_time() - begun < 20

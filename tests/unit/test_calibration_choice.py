# SPDX-License-Identifier: Apache-2.0
"""Of several places of a field, those are kept that are right for the connections of others."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from stallscope.collectors.calibration.choice import chosen
from stallscope.collectors.calibration.memory import MemoryThread, Piece
from stallscope.collectors.calibration.search import OBJECT, find_idle
from stallscope.collectors.sql.staged import Known

__all__: list[str] = []

PLACE, ID, ID_2, USER, USER_2, HOST, HOST_2, START, IDLE = -64, 8, 16, 32, 48, 64, 80, 96, 104
LAYOUT = {
    "thd.tls": PLACE,
    "thd.id": ID,
    "thd.id.2": ID_2,
    "thd.user": USER,
    "thd.user.2": USER_2,
    "thd.user.2#length": USER_2 + 8,
    "thd.host": HOST,
    "thd.host.2": HOST_2,
    "thd.start": START,
    "thd.start#clock": 1,
}


def people(count: int = 4) -> list[Known]:
    users = ("anna", "bert", "carla", "dora")
    return [
        Known(100 + i, user=users[i % 4], host=f"10.0.0.{i}:{5000 + i}", command="Sleep")
        for i in range(count)
    ]


class Server:
    """A thread for each connection; its object is at ``object(i)``."""

    def __init__(self, rows: Sequence[Known]) -> None:
        self.threads = tuple(
            MemoryThread(i + 1, i + 1, 0x10000 * (i + 1)) for i in range(len(rows))
        )
        self.memory = bytearray(0x10000 * (len(rows) + 1))
        self.end = len(self.memory)
        for i, known in enumerate(rows):
            self.word(self.threads[i].fs_base + PLACE, self.object(i))
            self.word(self.object(i) + ID, known.connection)
            self.word(self.object(i) + ID_2, known.connection)
            self.text(self.object(i) + USER, known.user or "")
            self.text(self.object(i) + USER_2, known.user or "")
            self.text(self.object(i) + HOST, (known.host or "").partition(":")[0])
            self.text(self.object(i) + HOST_2, (known.host or "").partition(":")[0])

    def object(self, i: int) -> int:
        return self.threads[i].fs_base + 0x400

    def word(self, address: int, value: int) -> None:
        self.memory[address : address + 8] = value.to_bytes(8, "little")

    def text(self, address: int, text: str) -> None:
        """Put a text at the end of memory, with its length behind the pointer."""
        self.word(address, self.end)
        self.word(address + 8, len(text))
        self.memory += text.encode() + b"\0"
        self.end = len(self.memory)

    def read(self, pieces: Sequence[Piece]) -> list[bytes]:
        return [bytes(self.memory[address : address + size]) for address, size in pieces]


def test_one_place_is_enough_where_many_connections_agree() -> None:
    rows = people()
    server = Server(rows)
    found = chosen(server, rows, LAYOUT)
    assert found["thd.user"] == USER
    assert found["thd.host"] == HOST
    assert not {"thd.user.2", "thd.user.2#length", "thd.host.2"} & set(found)
    assert (found["thd.id"], found["thd.id.2"]) == (ID, ID_2)
    assert {key: found[key] for key in ("thd.tls", "thd.start")} == {
        "thd.tls": PLACE,
        "thd.start": START,
    }


def test_places_are_all_kept_where_the_connections_do_not_distinguish_them() -> None:
    rows = [Known(100 + i, user="root", host="localhost", command="Sleep") for i in range(4)]
    assert chosen(Server(rows), rows, LAYOUT) == LAYOUT


@pytest.mark.parametrize("first", [True, False])
def test_a_place_that_is_wrong_for_others_is_dropped(first: bool) -> None:
    rows = people()
    server = Server(rows)
    bad = (USER, HOST) if first else (USER_2, HOST_2)
    for i in range(1, 4):
        server.text(server.object(i) + bad[0], "root")
        server.word(server.object(i) + bad[1], 0)
    found = chosen(server, rows, LAYOUT)
    assert found["thd.user"] == (USER_2 if first else USER)
    assert ("thd.user#length" in found) is first
    assert found["thd.host"] == (HOST_2 if first else HOST)


def test_an_id_of_an_earlier_connection_is_dropped() -> None:
    rows = people()
    server = Server(rows)
    for i in range(4):
        server.word(server.object(i) + ID, 7 + i)
    found = chosen(server, rows, LAYOUT)
    assert found["thd.id"] == ID_2
    assert "thd.id.2" not in found
    assert found["thd.user"] == USER


def test_those_that_run_a_routine_are_not_asked() -> None:
    """SQL names the definer of the routine."""
    rows = people()
    server = Server(rows)
    running = [
        *rows[:2],
        Known(102, user="root", host="localhost", command="Query"),
        Known(103, user="root", host="localhost", command="Query"),
    ]
    found = chosen(server, running, LAYOUT)
    assert [found[key] for key in ("thd.user", "thd.user.2")] == [USER, USER_2]


def test_memory_that_cannot_be_read_keeps_all() -> None:
    rows = people()
    server = Server(rows)
    server.memory = bytearray(16)
    assert chosen(server, rows, LAYOUT) == LAYOUT


def now_us() -> int:
    return time.monotonic_ns() // 1000


def idle_server(ages: Sequence[tuple[float, float]]) -> tuple[Server, list[tuple[int, int]]]:
    """Return a server whose connections began and ended their last statement so many seconds ago,
    and what it says of them: the later one of the two, give or take a millisecond."""
    rows = people(len(ages))
    server = Server(rows)
    server.memory += bytes(OBJECT)
    now = now_us()
    said = []
    for i, (begun, ended) in enumerate(ages):
        server.word(server.object(i) + START, now - int(begun * 1e6))
        server.word(server.object(i) + IDLE, now - int(ended * 1e6))
        since = (now - int(min(begun, ended) * 1e6)) * 1000
        said.append((since - 1_000_000, since + 1_000_000))
    return server, said


@pytest.mark.parametrize(
    ("ages", "found"),
    [
        ([(3.0, 1.0), (2.0, 0.5), (4.0, 4.0)], True),
        ([(3.0, 1.0), (2.0, 50.0), (4.0, 90.0)], True),  # a command that is no statement
        ([(3.0, 3.0), (2.0, 2.0)], False),  # it counts from the start
        ([], False),
    ],
)
def test_the_time_of_an_idle_connection(ages: list[tuple[float, float]], found: bool) -> None:
    server, said = idle_server(ages)
    expected = {"thd.idle": IDLE, "thd.idle#clock": 1} if found else {}
    assert find_idle(server, LAYOUT, list(zip(server.threads, said, strict=True))) == expected


def test_a_time_that_is_later_than_what_the_server_says_is_not_it() -> None:
    """Where one connection alone shows it, another time of it can be the same by chance."""
    server, said = idle_server([(3.0, 1.0), (4.0, 9.0), (5.0, 8.0)])
    now = now_us()
    for i, age in enumerate((1.0, 2.0, 3.0)):
        server.word(server.object(i) + START - 8, now - int(age * 1e6))
    found = find_idle(server, LAYOUT, list(zip(server.threads, said, strict=True)))
    assert found == {"thd.idle": IDLE, "thd.idle#clock": 1}


def test_those_that_ran_a_statement_meanwhile_say_nothing() -> None:
    server, said = idle_server([(3.0, 1.0), *[(2.0, 0.5)] * 6])
    for i in range(1, 7):
        for place in (START, IDLE):
            server.word(server.object(i) + place, now_us() + 5000)
    found = find_idle(server, LAYOUT, list(zip(server.threads, said, strict=True)))
    assert found == {"thd.idle": IDLE, "thd.idle#clock": 1}


def test_an_idle_connection_without_a_known_start() -> None:
    server, said = idle_server([(3.0, 1.0)])
    layout = {key: value for key, value in LAYOUT.items() if not key.startswith("thd.start")}
    assert find_idle(server, layout, list(zip(server.threads, said, strict=True))) == {}

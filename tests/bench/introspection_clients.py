# SPDX-License-Identifier: Apache-2.0
"""Connections that run statements of many kinds, idle, wait for each other, and come and go; and
what each of them knows of itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tests.bench.stats import BenchError

__all__ = [
    "HOSTS",
    "LOCK_SECONDS",
    "ROWS",
    "SCHEMAS",
    "USERS",
    "Client",
    "Dialect",
    "Facts",
    "Fleet",
    "Place",
    "Refused",
    "common_statements",
    "fleet",
]

SCHEMAS = ("shop", "stock", "people", "log_of_all")
USERS = ("anna", "bert", "carla", "user_of_16_chars")
HOSTS = (None, None, None, "127.0.0.2", "127.0.0.33", "127.1.0.4")
"""Addresses to come from; None: by the socket."""
ROWS = 40
"""Of a table on whose rows connections wait for each other."""
LOCKS = 12
LOCK_SECONDS = 2
"""The longest wait for a lock."""
IDLE_SECONDS = 1.5
STACK = 256 << 10
JOIN_SECONDS = 30.0


class Refused(Exception):
    """The server ended a statement as this load expects it: a lock was not there in time, or a
    deadlock was resolved."""


@dataclass(frozen=True)
class Place:
    """As whom, from where and to which schema a connection is made."""

    user: str
    database: str | None
    host: str | None = None
    """An address to come from; None: by the socket."""
    quiet: bool = False
    """It sends nothing of its own accord."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What a client knows of its connection. A new object each time that it sends something or
    gets an answer: as long as it is the same, the connection did not change."""

    connection: int
    user: str
    host: str
    statement: str | None = None
    """The last one that was sent."""
    is_last: bool = True
    """Nothing else, like a ping, was sent since."""
    answered: bool = True
    transaction: bool | None = None
    """Whether one is open, as the server said in its last answer."""


class Connected(Protocol):
    """One connection."""

    def run(self, sql: str) -> None:
        """Run a statement; raise Refused as it says."""

    def use(self, database: str) -> None:
        """Change the schema without a statement, where there is a way."""

    def ping(self) -> None:
        """Send something that is no statement."""

    def close(self) -> None:
        """Say goodbye."""

    def cut(self) -> None:
        """End it, whatever it runs; another thread calls this."""


class Dialect(Protocol):
    """A server's SQL, and how to connect to it."""

    def connect(self, place: Place, know: Callable[[Facts], None]) -> Connected:
        """Connect; ``know`` takes the facts whenever they change."""

    def statements(self, rng: random.Random, word: str) -> Sequence[str]:
        """Return quick statements that have the word in them."""

    def sleep(self, seconds: float, word: str) -> str: ...

    def lock(self, number: int, seconds: int, word: str) -> str:
        """Wait for a lock of a user's own."""

    def unlock(self, number: int) -> str: ...

    def settings(self) -> Sequence[str]:
        """Return statements that limit how long a connection waits."""


def common_statements(rng: random.Random, word: str) -> tuple[str, ...]:
    """Return quick statements of every dialect that have the word in them."""
    number = rng.randrange(ROWS)
    return (
        f"SELECT '{word}', {rng.random()}",
        f"SELECT v /* {word} */ FROM shop.contended WHERE id = {number}",
        f"INSERT INTO shop.notes (text) VALUES ('{word}')",
        f"UPDATE shop.notes SET text = '{word}' WHERE id = {-number - 1}",
        f"(SELECT '{number}') UNION (SELECT '{word}')",
    )


@dataclass
class Client:
    """One connection after another, in a thread of its own."""

    dialect: Dialect
    rng: random.Random
    end: threading.Event
    facts: Facts | None = None
    failure: BaseException | None = None
    connections: int = 0
    statements: int = 0
    _connected: Connected | None = None
    _thread: threading.Thread | None = field(default=None, repr=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until the thread has ended; what it still runs is cut off."""
        connected = self._connected
        if connected is not None:
            connected.cut()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _know(self, facts: Facts) -> None:
        self.facts = facts

    def _work(self) -> None:
        try:
            while not self.end.is_set():
                self._live()
        except BaseException as error:  # of a thread; the one that measures raises it
            if not self.end.is_set():
                self.failure = error

    def _live(self) -> None:
        """Be one connection from its beginning to its end."""
        rng = self.rng
        place = Place(
            user=rng.choice(USERS),
            database=rng.choice((None, *SCHEMAS, *SCHEMAS)),
            host=rng.choice(HOSTS),
            quiet=rng.random() < 0.5,
        )
        self._connected = connected = self.dialect.connect(place, self._know)
        self.connections += 1
        try:
            if place.quiet and rng.random() < 0.6:
                self._idle()
            for sql in self.dialect.settings():
                connected.run(sql)
            while not self.end.is_set() and rng.random() > 0.06:
                self._act(connected)
        finally:
            self.facts = None
            self._connected = None
            connected.close()

    def _idle(self) -> None:
        self.end.wait(self.rng.expovariate(1 / IDLE_SECONDS))

    def _run(self, connected: Connected, sql: str) -> None:
        self.statements += 1
        connected.run(sql)

    def _act(self, connected: Connected) -> None:
        acts = (self._quick, self._sleep, self._transaction, self._row, self._lock, self._other)
        (act,) = self.rng.choices(acts, weights=(30, 18, 18, 14, 8, 8))
        act(connected)

    def _word(self) -> str:
        """Return a text that no other statement has, of any length."""
        size = int(10 ** self.rng.uniform(0.5, 3.3))
        if self.rng.random() < 0.01:
            size = int(10 ** self.rng.uniform(3.5, 4.6))
        word = f"{self.rng.getrandbits(64):x} größer ☃ "
        return (word * (size // len(word) + 1))[: max(size, 16)].rstrip()

    def _quick(self, connected: Connected) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self._run(connected, self.rng.choice(self.dialect.statements(self.rng, self._word())))
        self._idle()

    def _sleep(self, connected: Connected) -> None:
        seconds = round(self.rng.expovariate(0.5) + 0.01, 3)
        self._run(connected, self.dialect.sleep(seconds, self._word()))

    def _update(self) -> str:
        number = self.rng.randrange(ROWS)
        return (
            f"UPDATE shop.contended SET v = v + 1, w = '{self._word()[:200]}' WHERE id = {number}"
        )

    def _transaction(self, connected: Connected) -> None:
        """Hold a row while nothing runs."""
        try:
            self._run(connected, "BEGIN")
            self._run(connected, self._update())
            self._idle()
            self._run(connected, self.rng.choice(self.dialect.statements(self.rng, self._word())))
            self._idle()
        except Refused:
            if self.rng.random() < 0.5:
                self._idle()
        self._run(connected, self.rng.choice(("COMMIT", "ROLLBACK")))

    def _row(self, connected: Connected) -> None:
        try:
            self._run(connected, self._update())
        except Refused:
            self._idle()

    def _lock(self, connected: Connected) -> None:
        number = self.rng.randrange(LOCKS)
        try:
            self._run(connected, self.dialect.lock(number, LOCK_SECONDS, self._word()))
        except Refused:
            return
        self._idle()
        self._run(connected, self.dialect.unlock(number))

    def _other(self, connected: Connected) -> None:
        if self.rng.random() < 0.5:
            connected.use(self.rng.choice(SCHEMAS))
        else:
            connected.ping()
        self._idle()


class Fleet:
    """All clients of a server."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def facts(self) -> dict[int, Facts]:
        """Return what each client knows now, by its connection.

        Raises: BenchError, where one has lost its connection.
        """
        found = {}
        for client in self._clients:
            if client.failure is not None:
                raise BenchError(f"a connection failed: {client.failure!r}") from client.failure
            if (facts := client.facts) is not None:
                found[facts.connection] = facts
        return found

    @property
    def connections(self) -> int:
        """Return how many there were since the beginning."""
        return sum(client.connections for client in self._clients)

    @property
    def statements(self) -> int:
        return sum(client.statements for client in self._clients)


@contextmanager
def fleet(dialect: Dialect, count: int, seed: int) -> Iterator[Fleet]:
    """Run so many clients, all of which have connected once."""
    end = threading.Event()
    rng = random.Random(seed)
    clients = [Client(dialect, random.Random(rng.getrandbits(64)), end) for _ in range(count)]
    before = threading.stack_size(STACK)
    found = Fleet(clients)
    try:
        for client in clients:
            client.start()
        while not all(client.connections for client in clients):
            found.facts()
            time.sleep(0.01)
        yield found
    finally:
        threading.stack_size(before)
        end.set()
        for client in clients:
            client.stop()

# SPDX-License-Identifier: Apache-2.0
"""Whether what was read of connections from memory is what SQL and their clients say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from stallscope.model.sessions import MAX_STATEMENT, Session
from tests.bench.introspection_clients import Facts

__all__ = ["FIELDS", "Look", "Outcome", "Said", "Tally", "compare"]

AGE_SECONDS = 1.5
"""SQL has whole seconds."""
FIELDS = (
    "connection",
    "thread",
    "user",
    "host",
    "database",
    "command",
    "state",
    "statement",
    "last statement",
    "transaction",
    "age",
)
EXAMPLES = 2
"""Of each field and outcome, for a look at what is not right."""
REPEATED = re.compile(r"([0-9a-f]{12,16} größer ☃ )[0-9a-f größer☃]+")
KEPT = 1024
"""Bytes of an ended statement that performance_schema keeps, perhaps not all of its last
character."""
CHARACTER = 4


class Outcome(Enum):
    """Of one field of one connection in one capture."""

    RIGHT = "right"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True)
class Said:
    """What SQL says of a connection."""

    connection: int
    tid: int | None = None
    user: str | None = None
    host: str | None = None
    database: str | None = None
    command: str | None = None
    state: str | None = None
    statement: str | None = None
    """At most 1,024 characters."""
    seconds: float | None = None
    idle: bool = False
    transaction: bool | None = None
    """None: SQL does not show it."""
    staged: bool = True
    """Its state is a stage of its statement: SQL shows waits for the network in place of it."""
    settled: bool = False
    """SQL itself says that it did not change in the last second."""

    def same(self, other: Said) -> bool:
        """Return whether it runs the same as the other one."""
        return (
            self.connection == other.connection
            and self.user == other.user
            and self.database == other.database
            and self.command == other.command
            and self.statement == other.statement
            and self.idle == other.idle
        )


@dataclass(frozen=True)
class Look:
    """What SQL, and before it the clients, say at one moment."""

    said: Mapping[int, Said]
    facts: Mapping[int, Facts]


@dataclass
class Tally:
    """Outcomes by field, and examples of what was not right."""

    fields: dict[str, Counter[Outcome]] = field(
        default_factory=lambda: {name: Counter() for name in FIELDS}
    )
    connections: Counter[Outcome] = field(default_factory=Counter)
    listed: int = 0
    """Connections that SQL showed, also those that changed meanwhile."""
    examples: list[str] = field(default_factory=list)

    def add(self, before: Look, after: Look, seen: Mapping[int, Session]) -> None:
        """Compare the connections that did not change between the looks."""
        for number, said in after.said.items():
            self.listed += 1
            earlier = before.said.get(number)
            if earlier is None or not earlier.same(said):
                continue
            facts = after.facts.get(number)
            if before.facts.get(number) is not facts or (facts is None and not said.settled):
                continue
            session = seen.get(number)
            self._count(compare(earlier, said, facts, session), (said, facts), session)

    def _count(
        self,
        outcomes: Mapping[str, Outcome],
        said: tuple[Said, Facts | None],
        session: Session | None,
    ) -> None:
        for name, outcome in outcomes.items():
            self.fields[name][outcome] += 1
            if outcome is not Outcome.RIGHT:
                self._example(name, outcome, said, session)
        found = set(outcomes.values())
        worst = (Outcome.WRONG, Outcome.MISSING, Outcome.RIGHT)
        self.connections[next(one for one in worst if one in found)] += 1

    def _example(
        self,
        name: str,
        outcome: Outcome,
        said: tuple[Said, Facts | None],
        session: Session | None,
    ) -> None:
        known = sum(one.startswith(f"{outcome.value} {name}:") for one in self.examples)
        if known < EXAMPLES:
            sql, client = map(_short, map(repr, said))
            memory = _short(repr(session))
            self.examples.append(
                f"{outcome.value} {name}: SQL says {sql}, the client {client}, memory {memory}"
            )


def compare(
    earlier: Said, said: Said, facts: Facts | None, session: Session | None
) -> dict[str, Outcome]:
    """Return the outcome of each field that is known from SQL or the client."""
    if session is None:
        return {"connection": Outcome.MISSING}
    found = {
        "connection": Outcome.RIGHT,
        # While a routine runs, SQL names its definer.
        "user": _same(facts.user if facts else said.user, session.user),
        "host": _same(facts.host if facts else said.host, session.host),
        "database": _same(said.database, session.database),
        "command": _same(said.command, session.command),
    }
    if said.tid is not None:
        found["thread"] = _same(said.tid, session.tid)
    if earlier.state == said.state and said.staged:
        found["state"] = _same(said.state, session.state)
    if not said.idle:
        running = None if session.last else session.statement
        found["statement"] = _same(_cut(said.statement), running)
    elif facts is not None:
        found["last statement"] = _last(facts, session)
    transaction = said.transaction
    if transaction is None and facts is not None:
        transaction = facts.transaction
    if transaction is not None:
        found["transaction"] = _same(transaction, session.transaction)
    if said.seconds is not None and earlier.seconds is not None:
        found["age"] = _age(earlier.seconds, said.seconds, session.seconds)
    return found


def _short(text: str) -> str:
    return REPEATED.sub(r"\1…", text)


def _same(expected: object, seen: object) -> Outcome:
    if expected == seen:
        return Outcome.RIGHT
    return Outcome.MISSING if seen is None else Outcome.WRONG


def _cut(text: str | None) -> str | None:
    """Leave out what is too long, and a part of a last character."""
    return None if text is None else text[:MAX_STATEMENT].rstrip("\ufffd")


def _last(facts: Facts, session: Session) -> Outcome:
    if session.statement is None and not facts.is_last:
        return Outcome.RIGHT  # what was sent last was no statement
    if session.statement is not None and not session.last:
        return Outcome.WRONG
    sent, seen = _cut(facts.statement), session.statement
    if sent and seen and len(seen.encode()) >= KEPT - CHARACTER:
        return _same(sent[: len(seen) - 1], seen[:-1])
    return _same(sent, seen)


def _age(before: float, after: float, seen: float | None) -> Outcome:
    if seen is None:
        return Outcome.MISSING
    near = before - AGE_SECONDS <= seen <= after + AGE_SECONDS
    return Outcome.RIGHT if near else Outcome.WRONG

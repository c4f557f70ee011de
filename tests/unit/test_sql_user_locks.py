# SPDX-License-Identifier: Apache-2.0
"""Owners of the locks of GET_LOCK(), from the texts of statements and IS_USED_LOCK()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.user_locks import IS_USED, MAX_NAMES, read_user_lock_waits
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait, Session


class Server:
    """Says who holds which lock, and notes what it was asked."""

    def __init__(self, owners: dict[str, int]) -> None:
        self.owners = owners
        self.asked: list[str] = []

    def select(
        self, text: str, arguments: Sequence[str] = (), *, max_rows: int
    ) -> list[tuple[Any, ...]]:
        assert (text, max_rows) == (IS_USED, 1)
        self.asked.append(arguments[0])
        return [(self.owners.get(arguments[0]),)]


def waits(server: Server, *sessions: Session, known: Sequence[int] = ()) -> list[LockWait]:
    return read_user_lock_waits(cast("SqlSession", server), sessions, set(known))


def waiting(connection: int, statement: str, state: str = "User lock") -> Session:
    return Session(connection, 100 + connection, state=state, statement=statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT GET_LOCK('job', 3600)",
        'select get_lock ( "job" , 10)',
        "DO GET_LOCK('job',1)",
        "SELECT GET_LOCK('job', 1), GET_LOCK('job', 1)",
    ],
)
def test_the_owner_is_named(statement: str) -> None:
    found = waits(Server({"job": 5}), waiting(7, statement), waiting(8, statement))
    assert found == [
        LockWait(LockKind.METADATA, 7, 5, "GET_LOCK(?)", "EXCLUSIVE"),
        LockWait(LockKind.METADATA, 8, 5, "GET_LOCK(?)", "EXCLUSIVE"),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT GET_LOCK(@name, 10)",
        "SELECT GET_LOCK('it\\'s', 10)",
        "SELECT GET_LOCK('it''s', 10)",
        "SELECT GET_LOCK(CONCAT('a', 'b'), 10)",
        "SELECT GET_LOCK('a', 1), GET_LOCK('b', 1)",
        "SELECT RELEASE_LOCK('job')",
        "",
    ],
)
def test_a_name_that_is_not_certain_is_not_asked_for(statement: str) -> None:
    server = Server({"a": 1, "b": 2, "job": 5})
    assert waits(server, waiting(7, statement)) == []
    assert server.asked == []


def test_others_are_not_asked_for() -> None:
    server = Server({"job": 5})
    text = "SELECT GET_LOCK('job', 10)"
    assert waits(server, waiting(7, text, "executing"), waiting(8, text), known=[8]) == []
    assert server.asked == []


def test_a_lock_that_is_free_by_then_has_no_owner() -> None:
    assert waits(Server({}), waiting(7, "SELECT GET_LOCK('job', 10)")) == []
    assert waits(Server({"job": 7}), waiting(7, "SELECT GET_LOCK('job', 10)")) == []


def test_few_names_are_asked_for() -> None:
    server = Server({})
    waits(server, *(waiting(number, f"DO GET_LOCK('{number}', 1)") for number in range(50)))
    assert len(server.asked) == MAX_NAMES

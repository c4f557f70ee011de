# SPDX-License-Identifier: Apache-2.0
"""Waits for rows of MyRocks, and their owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from stallscope.collectors.sql import rocksdb_locks
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.rocksdb_locks import MAX_LOCKED, TRANSACTIONS, read_rocksdb_waits
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait, Session

KEY = "0000010080000001"
WAITING = Session(20, 120, state="Waiting for row lock")


class Server:
    """Has a table of transactions and one of locks; None: there is no such table."""

    def __init__(
        self, transactions: list[tuple[Any, ...]] | None, locks: list[tuple[Any, ...]]
    ) -> None:
        self.transactions = transactions
        self.locks = locks
        self.asked: list[str] = []

    def select(
        self, text: str, arguments: Sequence[str] = (), *, max_rows: int
    ) -> list[tuple[Any, ...]]:
        self.asked.append(text)
        if text == TRANSACTIONS:
            if self.transactions is None:
                raise StatementError("no such table", 1109)
            return self.transactions[:max_rows]
        return [row for row in self.locks if row[1] in arguments]


def waits(server: Server, *sessions: Session) -> list[LockWait]:
    return read_rocksdb_waits(cast("SqlSession", server), sessions or (WAITING,))


def test_the_owner_of_the_key_is_named() -> None:
    server = Server(
        [(17, 0, KEY, 1, 20), (3, 0, KEY, 0, 6), (2, 0, "", 1, 5), (9, 0, "", 1, 7)],
        [(0, KEY, 2), (1, KEY, 9)],
    )
    assert waits(server) == [
        LockWait(LockKind.ROW, 20, 5, "a row of index 256", "X"),
        LockWait(LockKind.ROW, 6, 5, "a row of index 256", "X"),
    ]


def test_nothing_is_asked_where_nobody_waits() -> None:
    server = Server([], [])
    assert waits(server, Session(1, 2, state="Sending data")) == []
    assert server.asked == []


@pytest.mark.parametrize("transactions", [None, [], [(2, 0, "", 1, 5)], [(17, 0, KEY, 1, 20)]])
def test_what_is_not_there_names_nobody(transactions: list[tuple[Any, ...]] | None) -> None:
    assert waits(Server(transactions, [])) == []


def test_an_owner_that_has_gone_is_not_named() -> None:
    assert waits(Server([(17, 0, KEY, 1, 20)], [(0, KEY, 2)])) == []


def test_very_many_locks_are_not_copied() -> None:
    server = Server([(17, 0, KEY, 1, 20), (2, 0, "", MAX_LOCKED, 5)], [(0, KEY, 2)])
    with pytest.raises(StatementError, match="are not read"):
        waits(server)
    assert len(server.asked) == 1


@pytest.mark.parametrize("key", ["", "zz", "é"])
def test_a_key_that_is_no_number_has_no_name(key: str) -> None:
    assert rocksdb_locks._name(key) == "a row"

# SPDX-License-Identifier: Apache-2.0
"""What the heartbeat says of a server that owes an answer to another question."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stallscope.collectors.sql import connection as module
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import LateError
from stallscope.collectors.sql.heartbeat import Heartbeat
from stallscope.collectors.sql.login import Login

__all__: list[str] = []


class Answering(Connection):
    """A connection to nobody."""

    def _connect(self) -> Any:
        return SimpleNamespace(run=lambda sql: None, drop=lambda: None, quit=lambda: None)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


@pytest.mark.slow
@pytest.mark.parametrize("expensive", [False, True])
def test_one_slow_query_is_no_server_that_does_not_answer(
    expensive: bool, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXPENSIVE_SECONDS", 3600.0)
    connection = Answering(Login(user="nobody"))
    asked = threading.Event()

    def wait_at_the_gate(_: object) -> None:
        asked.set()
        gate.wait()

    begun = time.monotonic()
    # Nothing is asked by a thread that got no CPU in all the time.
    while not asked.is_set():
        with pytest.raises(LateError):
            connection.ask(wait_at_the_gate, 0.01, expensive=expensive)
    beat = Heartbeat(connection, 0.01).collect()
    assert beat.error is not None
    if expensive:
        assert beat.elapsed_ms == 0
    else:
        assert 10 <= beat.elapsed_ms <= (time.monotonic() - begun) * 1e3
    connection.close()

# SPDX-License-Identifier: Apache-2.0
"""Clients that queue at a listening socket are counted, by the kernel that runs the tests."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.accepting import Accepting

CLIENTS = 3


def listening(family: int, address: object) -> socket.socket:
    end = socket.socket(family)
    end.bind(address)  # type: ignore[arg-type]
    end.listen(CLIENTS)
    return end


def queued(collector: Accepting) -> float | None:
    return collector.read(0).get("accept.queued")


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6])
def test_clients_that_are_not_accepted_are_counted(tmp_path: Path, family: int) -> None:
    path = str(tmp_path / "s.sock")
    local: dict[int, object] = {socket.AF_INET: ("127.0.0.1", 0), socket.AF_INET6: ("::1", 0)}
    with ExitStack() as ends:
        server = ends.enter_context(listening(family, local.get(family, path)))
        ports = () if family == socket.AF_UNIX else (server.getsockname()[1],)
        collector = Accepting(os.getpid(), ports, () if ports else (path,))
        assert queued(collector) == 0
        for _ in range(CLIENTS):
            ends.enter_context(socket.socket(family)).connect(server.getsockname())
        assert queued(collector) == CLIENTS
        server.accept()[0].close()
        assert queued(collector) == CLIENTS - 1
        collector.close()


def test_what_cannot_be_seen_is_unknown(tmp_path: Path) -> None:
    assert queued(Accepting(os.getpid(), (), (str(tmp_path / "other"),))) is None
    assert queued(Accepting(os.getpid(), (), ())) is None
    with listening(socket.AF_UNIX, str(tmp_path / "s.sock")):
        # Another network namespace, of which nobody is here.
        away = Accepting(os.getpid(), (), (str(tmp_path / "s.sock"),), proc=tmp_path)
        assert queued(away) is None


def test_a_kernel_without_sock_diag_is_said(tmp_path: Path) -> None:
    def fail() -> list[tuple[str, int]]:
        raise StallscopeError("sock_diag does not answer: not here")

    collector = Accepting(os.getpid(), (), ("/s",), queues=fail)
    with pytest.raises(StallscopeError, match="not here"):
        collector.collect()

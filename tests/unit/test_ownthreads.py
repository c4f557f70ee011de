# SPDX-License-Identifier: Apache-2.0
"""Connections of this process, and the threads that serve them."""

from __future__ import annotations

import socket
import threading

from stallscope.collectors import ownthreads
from tests.support.servers import PATIENCE

__all__: list[str] = []


class Owner:
    """Holds a connection."""


def test_an_owner_may_be_collected_in_the_middle_of_any_work() -> None:
    """Garbage is collected in any thread, at any moment: the lock of its list was taken twice."""
    ours, servers = socket.socketpair()
    with ours, servers:
        owners = [Owner()]
        lost = ownthreads.opened(owners[0], ours, None)

        def collect() -> None:
            with ownthreads._registry._lock:
                owners.clear()

        worker = threading.Thread(target=collect, daemon=True)
        worker.start()
        worker.join(PATIENCE)
        assert not worker.is_alive()
        owner = Owner()
        kept = ownthreads.opened(owner, ours, None)
        assert (lost.ended, kept.ended) == (True, False)
        assert kept in ownthreads.open_threads()
        ownthreads.close(kept)
        assert kept not in ownthreads.open_threads()

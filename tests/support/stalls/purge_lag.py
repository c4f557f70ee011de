# SPDX-License-Identifier: Apache-2.0
"""A history that grows faster than purge removes it, so that InnoDB delays changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.sql import SqlServer
from tests.support.stalls.disk_load import UPDATE, fill_pages, loop_statements, running

__all__ = ["purge_lag"]


@contextmanager
def purge_lag(server: SqlServer, connections: int = 20) -> Iterator[None]:
    """Change rows from many connections, which makes a history, until most are delayed."""
    fill_pages(server)
    before = server.status("Questions")
    with loop_statements(
        server,
        UPDATE,
        connections,
        lambda: (
            server.status("Questions") > before + 10 * connections
            and running(server, "UPDATE") >= connections * 3 // 4
        ),
        f"{connections} connections make a history",
    ):
        yield

# SPDX-License-Identifier: Apache-2.0
"""Commits that wait for each other, and commits that wait for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.sql import SqlServer
from tests.support.stalls.disk_load import COMMIT, PAUSE, loop_counted, loop_statements, make_log
from tests.support.stalls.file_extend import write_dirty_pages
from tests.support.stalls.processlist import running
from tests.support.stalls.redo_sync import Device, make_journals, redo_sync

__all__ = ["clean_redo_sync", "commits", "group_commit_delay"]


@contextmanager
def commits(server: SqlServer, connections: int = 20) -> Iterator[None]:
    """Commit a row from each connection about ten times a second, on a disk that answers."""
    make_log(server)
    with loop_counted(server, COMMIT + PAUSE, connections, "Com_insert", 10 * connections):
        yield


@contextmanager
def clean_redo_sync(server: SqlServer, device: Device) -> Iterator[None]:
    """Make the stall ``redo_sync`` where no page is to be written.

    MariaDB's page cleaner would write the log first, and the commits wait for it.
    """
    journals = make_journals(server)
    write_dirty_pages(server)
    with redo_sync(server, device, journals):
        yield


@contextmanager
def group_commit_delay(server: SqlServer, connections: int = 20) -> Iterator[None]:
    """Commit from some connections where the first of each group has to wait for more."""
    make_log(server)
    with loop_statements(
        server,
        COMMIT,
        connections,
        lambda: running(server, "INSERT") == connections,
        f"{connections} connections commit",
    ):
        yield

# SPDX-License-Identifier: Apache-2.0
"""Disks of a few MB that are full, under one kind of a server's files."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import Unavailable
from tests.support.loopdisks import missing, mounted
from tests.support.servers.child import UNPRIVILEGED
from tests.support.servers.sql import SqlServer
from tests.support.stalls.disk_load import loop_counted, loop_statements

__all__ = ["FULL_OPTIONS", "full_binlog", "roomy_binlog", "small_disk"]

FULL_OPTIONS = ("--binlog-format=ROW", "--sync-binlog=0", "--server-id=1", "--max-binlog-size=1M")
"""Options the server wants for these stalls, beside where the files are."""
SIZE = "16m"
INSERTS = "INSERT INTO parcels (content) VALUES (REPEAT('x', 200000)); SELECT SLEEP(0.5);"
TABLE = (
    "CREATE DATABASE IF NOT EXISTS post",
    "CREATE TABLE post.parcels (id INT PRIMARY KEY AUTO_INCREMENT, content MEDIUMTEXT)"
    " ENGINE=InnoDB",
)


@contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a file system of a few MB that the server may write to."""
    if reason := missing():
        raise Unavailable(reason)
    folder = Path(tempfile.mkdtemp(prefix="stallscope-small-"))
    try:
        with mounted(folder, "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs"):
            shutil.chown(folder, UNPRIVILEGED, "nogroup")
            yield folder
    finally:
        folder.rmdir()


@contextmanager
def full_binlog(server: SqlServer, disk: Path, clients: int = 8) -> Iterator[None]:
    """Insert rows until the disk under the binary log has no room, and a commit waits for some."""
    server.execute(*TABLE)
    with loop_statements(
        server,
        INSERTS,
        clients,
        lambda: "Disk is full writing" in server.log.read_text(),
        "a commit waits for room on the disk",
        database="post",
    ):
        yield
    make_room(disk)


def make_room(disk: Path) -> None:
    """Enlarge it: what waits goes on within 60 s."""
    subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)


@contextmanager
def roomy_binlog(server: SqlServer, disk: Path, clients: int = 8) -> Iterator[None]:
    """Insert the same rows on a disk that has room for them."""
    make_room(disk)
    server.execute(*TABLE)
    with loop_counted(server, INSERTS, clients, "Com_insert", 2 * clients, database="post"):
        yield

# SPDX-License-Identifier: Apache-2.0
"""Disks of a few MB that are full, under one kind of a server's files."""

from __future__ import annotations

import os
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

__all__ = [
    "DATA_SIZE",
    "FULL_OPTIONS",
    "full_binlog",
    "full_data",
    "roomy_binlog",
    "roomy_data",
    "small_disk",
]

FULL_OPTIONS = ("--binlog-format=ROW", "--sync-binlog=0", "--server-id=1", "--max-binlog-size=1M")
"""Options the server wants for these stalls, beside where the files are."""
DATA_SIZE = "512m"
"""Empty data takes up to 200 MB."""
INSERTS = "INSERT INTO parcels (content) VALUES (REPEAT('x', 200000)); SELECT SLEEP(0.5);"
LEFT = 4 << 20
TABLE = (
    "CREATE DATABASE IF NOT EXISTS post",
    "CREATE TABLE post.parcels (id INT PRIMARY KEY AUTO_INCREMENT, content MEDIUMTEXT)"
    " ENGINE=InnoDB",
)


@contextmanager
def small_disk(size: str = "16m") -> Iterator[Path]:
    """Mount a file system of a few MB that the server may write to."""
    if reason := missing():
        raise Unavailable(reason)
    folder = Path(tempfile.mkdtemp(prefix="stallscope-small-"))
    try:
        with mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
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


@contextmanager
def full_data(server: SqlServer, disk: Path, clients: int = 8) -> Iterator[None]:
    """Fill the disk under the data directory but for a little, and insert into a MyISAM table."""
    server.execute(*TABLE, "ALTER TABLE post.parcels ENGINE=MyISAM")
    filler = disk / "dump.sql"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - LEFT)
    with loop_statements(
        server,
        INSERTS,
        clients,
        lambda: "Disk is full writing" in server.log.read_text(),
        "an insert waits for room on the disk",
        database="post",
    ):
        yield
    filler.unlink()


@contextmanager
def roomy_data(server: SqlServer, disk: Path, clients: int = 8) -> Iterator[None]:
    """Insert the same rows on a disk that has room for them."""
    server.execute(*TABLE, "ALTER TABLE post.parcels ENGINE=MyISAM")
    make_room(disk)
    with loop_counted(server, INSERTS, clients, "Com_insert", 2 * clients, database="post"):
        yield


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

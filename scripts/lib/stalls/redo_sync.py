# SPDX-License-Identifier: Apache-2.0
"""A disk that stops answering: a file system on a loop device, frozen for a while."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.child import program
from servers.clients import running_statements
from servers.sql import SqlServer
from servers.waiting import wait_until

__all__ = ["REDO_SYNC_OPTIONS", "device_missing", "loop_device", "redo_sync"]

REDO_SYNC_OPTIONS = ("--innodb-flush-log-at-trx-commit=1",)
"""Options the server wants for this stall (later ones win)."""

SIZE = 1 << 30
INSERT = "INSERT INTO journal VALUES (NULL)"
INSERTING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'INSERT%'"


def device_missing() -> str | None:
    """Return why no file system can be frozen here, or None."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    for name in ("mkfs.ext4", "fsfreeze"):
        if program(name) is None:
            return f"no {name} here: run scripts/setup --tests"
    return None if Path("/dev/loop-control").exists() else "no loop devices here"


@contextmanager
def loop_device() -> Iterator[Path]:
    """Mount a small file system of its own; start a server with ``parent`` set to it."""
    folder = Path(tempfile.mkdtemp(prefix="stallscope-device-"))
    image, mounted = folder / "image", folder / "mounted"
    try:
        mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(SIZE)
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(mounted))
        try:
            mounted.chmod(0o755)
            folder.chmod(0o755)
            yield mounted
        finally:
            _run("umount", str(mounted))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def redo_sync(server: SqlServer, device: Path, waiters: int = 20) -> Iterator[None]:
    """Let commits wait for the redo log of a server whose data is on ``device``."""
    server.execute(
        "CREATE DATABASE IF NOT EXISTS diary",
        "CREATE TABLE IF NOT EXISTS diary.journal (id INT AUTO_INCREMENT PRIMARY KEY)"
        " ENGINE=InnoDB",
    )
    with running_statements(server, "diary", [INSERT] * waiters, after=lambda: _freeze(device)):
        try:
            wait_until(
                lambda: int(server.query(INSERTING)[0][0]) == waiters, f"{waiters} commits wait"
            )
            yield
        finally:
            _run("fsfreeze", "--unfreeze", str(device))


def _freeze(device: Path) -> None:
    _run("fsfreeze", "--freeze", str(device))


def _run(name: str, *arguments: str) -> None:
    subprocess.run([str(program(name)), *arguments], check=True, capture_output=True, timeout=60)

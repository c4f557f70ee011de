# SPDX-License-Identifier: Apache-2.0
"""A disk that stops answering: a loop device on a file system that is frozen for a while."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers.child import program
from tests.support.servers.clients import running_statements
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import wait_held_up
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.support.stalls.processlist import running

__all__ = [
    "REDO_SYNC_OPTIONS",
    "Device",
    "device_missing",
    "frozen_files",
    "held_up_inserts",
    "loop_device",
    "make_journals",
    "redo_sync",
]

REDO_SYNC_OPTIONS = ("--innodb-flush-log-at-trx-commit=1",)
"""Options the server wants for this stall (later ones win)."""

SIZE = 1 << 29
SMALL = 1 << 16
"""Files of this size and less have no rows that a server reads with O_DIRECT."""
KEEP = mmap.MAP_SHARED | mmap.MAP_POPULATE | 0x2000  # MAP_LOCKED


def device_missing() -> str | None:
    """Return why no file system can be frozen here, or None."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    for name in ("mkfs.ext4", "fsfreeze"):
        if program(name) is None:
            return f"no {name} here: run scripts/setup --all"
    try:
        with loop_device():
            return None
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]} failed: {error.stderr.decode(errors='replace').strip()}"


@dataclass(frozen=True)
class Device:
    """A mounted file system, and the one that holds its image."""

    folder: Path
    """Where to start a server: its ``parent``."""
    below: Path
    _kept: list[mmap.mmap] = field(default_factory=list)

    def freeze(self) -> None:
        """Hold back what reaches the device: writes go on into the page cache, syncs do not.

        What was written before is on the device by then: where its journal were on the way, a
        write would wait for that, and not the sync after it.
        """
        self._keep_small_files()
        _run("sync", "--file-system", str(self.folder))
        _run("fsfreeze", "--freeze", str(self.below))

    def _keep_small_files(self) -> None:
        """Keep them in memory: who opens a table would wait for its definition else, where the
        kernel has taken that out of the page cache (it may do so at any time, as DAMON does)."""
        for path in self.folder.rglob("*"):
            # The server may remove a temporary one meanwhile.
            with suppress(FileNotFoundError):
                if not path.is_file() or not 0 < path.stat().st_size <= SMALL:
                    continue
                with path.open("rb") as file:
                    self._kept.append(mmap.mmap(file.fileno(), 0, KEEP, mmap.PROT_READ))

    def freeze_files(self) -> None:
        """Hold back all changes of the files themselves."""
        _run("fsfreeze", "--freeze", str(self.folder))

    def thaw(self) -> None:
        """Let the device answer; who watched the stall may have done so already."""
        while self._kept:
            self._kept.pop().close()
        for folder in (self.below, self.folder):
            with suppress(subprocess.CalledProcessError):
                _run("fsfreeze", "--unfreeze", str(folder))


@contextmanager
def loop_device(parent: Path | None = None) -> Iterator[Device]:
    """Mount a file system, its image in ``parent``, whose device can be made to stop answering."""
    home = Path(tempfile.mkdtemp(prefix="stallscope-device-", dir=parent))
    try:
        home.chmod(0o755)
        with (
            _mounted(home / "image", home / "below", 2 * SIZE) as below,
            _mounted(below / "image", home / "data", SIZE) as folder,
        ):
            yield Device(folder, below)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _mounted(image: Path, folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", str(image))
    _run("mount", "-o", "loop", str(image), str(folder))
    try:
        yield folder
    finally:
        # A mount namespace that another test made meanwhile has copies of both mounts, and keeps
        # the inner one's image open: without --lazy the outer one is busy until it ends.
        _run("umount", "--lazy", str(folder))


def make_journals(server: SqlServer, count: int = 20) -> list[str]:
    """Make tables to insert into: rows of one page would wait for its latch, not for the log."""
    journals = [f"diary.journal{number}" for number in range(count)]
    server.execute(
        "CREATE DATABASE IF NOT EXISTS diary",
        *(f"CREATE TABLE {journal} (id INT PRIMARY KEY) ENGINE=InnoDB" for journal in journals),
        *(f"INSERT INTO {journal} VALUES (1)" for journal in journals),
    )
    return journals


@contextmanager
def redo_sync(
    server: SqlServer, device: Device, journals: Sequence[str] | None = None
) -> Iterator[None]:
    """Let commits wait for the redo log of a server whose data is on ``device``.

    ``journals`` were made before, where the syncs that this takes must not be part of the stall.
    """
    journals = make_journals(server) if journals is None else journals
    inserts = [f"INSERT INTO {journal} VALUES (2)" for journal in journals]
    with held_up_inserts(server, device, "diary", inserts):
        yield


@contextmanager
def frozen_files(server: SqlServer, device: Device) -> Iterator[None]:
    """Let commits wait until the file system itself, on which the server's data is, is thawed."""
    inserts = [f"INSERT INTO {journal} VALUES (2)" for journal in make_journals(server)]
    with held_up_inserts(server, device, "diary", inserts, device.freeze_files):
        yield


@contextmanager
def held_up_inserts(
    server: SqlServer,
    device: Device,
    database: str,
    inserts: Sequence[str],
    freeze: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Freeze the device under these INSERTs, each on a connection of its own."""
    with running_statements(server, database, inserts, after=freeze or device.freeze):
        try:
            wait_until(
                lambda: running(server, "INSERT") == len(inserts), f"{len(inserts)} inserts run"
            )
            wait_held_up(server.pid)
            yield
        finally:
            device.thaw()


def _run(name: str, *arguments: str) -> None:
    subprocess.run(
        [str(program(name)), *arguments], check=True, capture_output=True, timeout=PATIENCE
    )

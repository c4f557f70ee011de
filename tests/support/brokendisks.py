# SPDX-License-Identifier: Apache-2.0
"""Disks and streams that take nothing more."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.waiting import wait_until

__all__ = ["fill", "full_disk", "full_pipe", "small_disk"]


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of a few MB."""
    folder.mkdir()
    size = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        # A child of the agent that was killed has its files until it has run again.
        wait_until(
            lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0,
            f"{folder} is unmounted",
        )


def fill(folder: Path) -> Path:
    """Take all that is left of a disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@contextmanager
def full_disk() -> Iterator[int]:
    with open("/dev/full", "wb") as file:
        yield file.fileno()


@contextmanager
def full_pipe() -> Iterator[int]:
    """Make a pipe that takes nothing more, and that nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    try:
        yield writing
    finally:
        os.close(reading)
        os.close(writing)

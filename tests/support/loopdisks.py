# SPDX-License-Identifier: Apache-2.0
"""File systems on loop devices, with the options that a test wants."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.waiting import wait_until

__all__ = ["loop_disk", "missing", "mounted", "umount"]


def missing(*programs: str) -> str | None:
    """Return why none can be made, or None."""
    lost = [name for name in ("losetup", "mount", *programs) if shutil.which(name) is None]
    return f"not here: {', '.join(lost)} (scripts/setup --all)" if lost else None


def _run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


@contextmanager
def loop_disk(
    folder: Path, *make: str, options: str = "", megabytes: int = 400
) -> Iterator[tuple[Path, str]]:
    """Make a file system in a file, and mount it; yield its folder, and the loop device's name."""
    folder.mkdir()
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    device = _run("losetup", "--find", "--show", str(image)).strip()
    try:
        _run(*make, device)
        with mounted(folder, "-o", options or "rw", device):
            folder.chmod(0o755)
            yield folder, device.removeprefix("/dev/")
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)
        image.unlink()


@contextmanager
def mounted(folder: Path, *words: str) -> Iterator[Path]:
    """Mount something, and unmount it in the end."""
    folder.mkdir(exist_ok=True)
    _run("mount", *words, str(folder))
    try:
        yield folder
    finally:
        umount(folder)


def umount(folder: Path) -> None:
    """Unmount; a server that has just ended can still have files there."""
    wait_until(
        lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0,
        f"{folder} is unmounted",
    )

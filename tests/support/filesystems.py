# SPDX-License-Identifier: Apache-2.0
"""Small file systems of several kinds, mounted for a test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["FILE_SYSTEMS", "mounted", "why_not"]

SIZE = 320 << 20
"""The least that mkfs.xfs takes is 300 MiB. The image is sparse."""

FILE_SYSTEMS = ("ext4", "xfs", "btrfs", "tmpfs", "overlay")

_MAKERS = {
    "ext4": ("mkfs.ext4", "-q"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
}


def why_not(kind: str) -> str | None:
    """Return why this machine cannot have this file system; None: it can."""
    maker = _MAKERS.get(kind, ("true",))[0]
    if shutil.which(maker) is None:
        return f"no {maker}: run scripts/setup --all"
    if kind not in Path("/proc/filesystems").read_text().split():
        return f"this kernel has no {kind}"
    return None


@contextmanager
def mounted(kind: str, home: Path) -> Iterator[Path]:
    """Mount a new file system below ``home``."""
    with ExitStack() as stack:
        yield _HOW.get(kind, _image)(stack, kind, home)


def _image(stack: ExitStack, kind: str, home: Path) -> Path:
    image = home / f"{kind}.image"
    with image.open("wb") as file:
        file.truncate(SIZE)
    _run(*_MAKERS[kind], str(image))
    return _mount(stack, home / kind, "-o", "loop", str(image))


def _tmpfs(stack: ExitStack, kind: str, home: Path) -> Path:
    return _mount(stack, home / kind, "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs")


def _overlay(stack: ExitStack, kind: str, home: Path) -> Path:
    """Mount it on a file system of its own: an overlay can be below it already."""
    base = _image(stack, "ext4", home)
    for name in ("lower", "upper", "work"):
        (base / name).mkdir()
    options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
    return _mount(stack, home / kind, "-t", "overlay", "-o", options, "overlay")


_HOW: dict[str, Callable[[ExitStack, str, Path], Path]] = {"tmpfs": _tmpfs, "overlay": _overlay}


def _mount(stack: ExitStack, folder: Path, *how: str) -> Path:
    folder.mkdir()
    _run("mount", *how, str(folder))
    # Another test's mount namespace may have a copy of the mount, which would be busy.
    stack.callback(_run, "umount", "--lazy", str(folder))
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)

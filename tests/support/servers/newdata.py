# SPDX-License-Identifier: Apache-2.0
"""Data folders of new servers, made once for each program and copied from then on.

``mysqld --initialize`` takes seconds of CPU, and tests start many servers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.cache import cache_folder
from tests.support.servers.child import server_user
from tests.support.servers.waiting import PATIENCE

__all__ = ["CREATE_SECONDS", "new_data"]

CREATE_SECONDS = 3 * PATIENCE
"""For data that are made: servers sync a thousand times meanwhile, each a wait on a slow disk."""


def new_data(program: Path, options: Sequence[str], data: Path, create: Callable[[], None]) -> None:
    """Make ``data`` by ``create``, or copy it from where that was done before.

    Program and options identify the kind of data: a newer program makes its own.
    """
    status = program.stat()
    users = (os.geteuid(), server_user())
    identity = f"{program} {status.st_size} {status.st_mtime_ns} {list(options)} {users}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    kept = cache_folder() / "new-data" / f"{program.name}-{name}"
    if not kept.is_dir():
        create()
        _keep(data, kept)
        return
    _copy(kept, data)


def _keep(data: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".part-", dir=kept.parent))
    try:
        _copy(data, aside / "data")
        _sync(aside / "data")
        (aside / "data").rename(kept)
    except OSError:
        if not kept.is_dir():  # another run was first
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Have it on the disk: what is kept is to be whole after a machine that lost its power, too."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            continue
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _copy(source: Path, target: Path) -> None:
    """Copy with owners and holes."""
    subprocess.run(
        ["cp", "-a", "--reflink=auto", "--sparse=always", str(source), str(target)], check=True
    )

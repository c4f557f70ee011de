# SPDX-License-Identifier: Apache-2.0
"""The folder in which captures wait for their incident, in the same file system as the store."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.store import files, layout, locking, owners

__all__ = ["spool"]

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def spool(dest: Path) -> Iterator[Path]:
    """Make the folder of this process; those of agents that were killed are removed.

    Its captures belong to no announced incident. Where the store can take no folder, since its disk
    is full or read-only, the folder is a temporary one: stalls are still captured and notified.
    Raises: StallscopeError.
    """
    above = dest / layout.SPOOL
    held: locking.Held | None = None
    try:
        files.make_folder(above)
        _remove_abandoned(above)
        folder, held = owners.take_folder(above)
        _empty(folder)
    except (OSError, StallscopeError) as error:
        folder = _elsewhere(dest, error)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            held.release()


def _elsewhere(dest: Path, error: Exception) -> Path:
    _log.error("the store %s cannot be written, and incidents are not stored: %s", dest, error)
    try:
        return Path(tempfile.mkdtemp(prefix="stallscope-"))
    except OSError as why:
        raise StallscopeError(f"{error}; nor is there another place: {why.strerror}") from why


def _remove_abandoned(above: Path) -> None:
    with files.folder(above) as inside:
        for name in files.names(inside):
            if not owners.is_abandoned(above, name, inside):
                continue
            # Locked: meanwhile a new process can have the same pid.
            with contextlib.suppress(OSError, locking.Locked):
                held = locking.take(above / name)
                shutil.rmtree(above / name, ignore_errors=True)
                held.release()


def _empty(folder: Path) -> None:
    """Remove what an earlier process with this pid left."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)  # of one server
        else:
            left.unlink()

# SPDX-License-Identifier: Apache-2.0
"""The folder in which captures wait for their incident, in the same file system as the store."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.store import layout

__all__ = ["spool"]


@contextlib.contextmanager
def spool(dest: Path) -> Iterator[Path]:
    """Make the folder of this process; those of agents that were killed are removed.

    Its captures belong to no announced incident.
    """
    folder = dest / layout.SPOOL / f"{os.getpid()}"
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        for left in folder.parent.iterdir():
            if left.name.isdecimal() and not Path("/proc", left.name).exists():
                shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier process with this pid
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StallscopeError(f"cannot make {folder}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
